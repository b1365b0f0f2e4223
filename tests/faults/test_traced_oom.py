"""Memory runs out while a step is traced: TensorFlow calls that a ValueError."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_tensorflow("PyTorch traces nothing")

CHILD = Path(__file__).with_name("traced_child.py")


@pytest.fixture(scope="module")
def seen() -> dict:
    done = subprocess.run(
        [sys.executable, CHILD],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_ran_out_while_tracing(seen: dict) -> None:
    assert any("Unable to evaluate a constant node" in error for error in seen["errors"])


def test_it_is_said_as_any_other(seen: dict) -> None:
    assert "does not fit, even with one sample at a time" in seen["refused"]


def test_nothing_changed_and_the_training_can_begin_again(seen: dict) -> None:
    assert seen["off"] == 0.0
    assert seen["steps"] == 1
