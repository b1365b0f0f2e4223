"""examples/pytorch_loop.py: a loop in plain PyTorch, under a real cap on the address space."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .side_by_side import legroom

SCRIPT = Path(__file__).parents[2] / "examples" / "pytorch_loop.py"
# The loss is that of a run without a cap.
CAP, SAMPLES, LOSS = "700MiB", 2 * 288, 0.66227


def test_a_loop_in_plain_pytorch(tmp_path: Path) -> None:
    written, unguarded = tmp_path / "report.json", tmp_path / "unguarded.py"
    text = SCRIPT.read_text()
    assert text.count("@legroom.step\n") == 1
    unguarded.write_text(text.replace("@legroom.step\n", ""))
    run = ("run", "--memory", CAP)
    died = legroom(tmp_path / "plain", *run, str(unguarded)).wait()
    assert died.code == 1
    assert "can't allocate memory" in died.errors
    finished = legroom(
        tmp_path / "guarded", *run, "--json", str(written), str(SCRIPT)
    ).wait()  # fmt: skip
    assert finished.code == 0, finished.errors[-3000:]
    (printed,) = re.findall(r"final loss: (\S+)", finished.output)
    assert float(printed) == pytest.approx(LOSS, rel=0.002)
    report = RunReport.from_json(written.read_text())
    assert (report.samples_seen, report.samples_lost) == (SAMPLES, 0)
    assert report.sliced
    assert report.ooms
