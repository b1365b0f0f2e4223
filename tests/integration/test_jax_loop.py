"""examples/jax_loop.py: a loop in plain JAX, under a real cap on the address space."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .side_by_side import legroom

SCRIPT = Path(__file__).parents[2] / "examples" / "jax_loop.py"
# The loss is that of a run without a cap.
CAP, SAMPLES, LOSS = "700MiB", 2 * 384, 2.16935


def test_a_loop_in_plain_jax(tmp_path: Path) -> None:
    written, unguarded = tmp_path / "report.json", tmp_path / "unguarded.py"
    text = SCRIPT.read_text()
    assert text.count("@legroom.step\n") == 1
    # A cap is put on by the first step that is guarded, and there is none.
    capped = f"import jax\nimport legroom\nlegroom.limit({CAP!r})\n"
    unguarded.write_text(capped + text.replace("@legroom.step\n", ""))
    died = legroom(tmp_path / "plain", "run", str(unguarded)).wait()
    assert died.code == 1
    assert "Out of memory allocating" in died.errors
    assert "@legroom.step" in died.errors
    finished = legroom(
        tmp_path / "guarded", "run", "--memory", CAP, "--json", str(written), str(SCRIPT)
    ).wait()
    assert finished.code == 0, finished.errors[-3000:]
    (printed,) = re.findall(r"final loss: (\S+)", finished.output)
    assert float(printed) == pytest.approx(LOSS, rel=0.002)
    report = RunReport.from_json(written.read_text())
    assert (report.samples_seen, report.samples_lost) == (SAMPLES, 0)
    assert report.sliced
    assert report.peak_bytes is not None
    assert report.peak_bytes <= 700 * 2**20
