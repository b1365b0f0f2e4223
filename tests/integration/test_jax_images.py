"""examples/jax_images.py: Keras on JAX, under a real cap on the address space."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .side_by_side import CAP, legroom

SCRIPT = Path(__file__).parents[2] / "examples" / "jax_images.py"
# The loss is that of a run without a cap.
SAMPLES, LOSS = 2 * 128, 2.3181


def test_keras_on_jax(tmp_path: Path) -> None:
    """The script says itself that it is on JAX: the command can't know that before."""
    assert "legroom" not in SCRIPT.read_text()
    written, run = tmp_path / "report.json", ("run", "--memory", "1GiB")
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras, legroom\n"
        f"legroom.limit({CAP})\nlegroom.uninstall()\n" + SCRIPT.read_text()
    )
    died = legroom(tmp_path / "plain", *run, str(unguarded)).wait()
    assert died.code == 1
    assert "final loss" not in died.output
    finished = legroom(tmp_path / "guarded", *run, "--json", str(written), str(SCRIPT)).wait()
    assert finished.code == 0, finished.errors[-3000:]
    (printed,) = re.findall(r"final loss: (\S+)", finished.output)
    assert float(printed) == pytest.approx(LOSS, rel=0.002)
    report = RunReport.from_json(written.read_text())
    assert (report.samples_seen, report.samples_lost) == (SAMPLES, 0)
    assert report.sliced
    assert report.budget_bytes == CAP
    assert report.peak_bytes is not None
    assert report.peak_bytes <= CAP
    assert report.slice_size < report.batch_size
