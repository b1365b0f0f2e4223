"""The examples of sweeps and searches, as they are, with the real Optuna and KerasTuner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "sweeps"


def run(tmp_path: Path, name: str) -> tuple[str, str]:
    """Run a copy of an example, so that what it keeps is not kept beside the original."""
    script = tmp_path / name
    shutil.copy(EXAMPLES / name, script)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text() + (Path(__file__).parent / "test_sweep_ray.py").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in text
        assert f"`{path.name}`" in (EXAMPLES.parent / "README.md").read_text()


def test_cross_validation(tmp_path: Path) -> None:
    output, told = run(tmp_path, "cross_validation.py")
    found = re.search(r"accuracy: (\S+) ± (\S+)", output)
    assert found is not None
    assert 0.75 < float(found[1]) <= 1
    assert float(found[2]) < 0.1
    assert "3 of 3 trials finished" in told


def test_optuna_prunes_what_does_not_fit(tmp_path: Path) -> None:
    output, told = run(tmp_path, "optuna_search.py")
    assert "{'size': 2048} does not fit: This training does not fit" in output
    assert re.search(r"best: \{'size': (16|32)\}, loss 0\.0\d+; 1 pruned", output)
    assert "pruned" in told


def test_keras_tuner_fails_what_does_not_fit_and_loads_what_does(tmp_path: Path) -> None:
    output, told = run(tmp_path, "keras_tuner_search.py")
    assert "zoom 1: COMPLETED" in output
    assert "zoom 64: FAILED" in output
    assert re.search(r"best model: loss 0\.0", output)
    assert "FailedTrialError: This training does not fit" in told
