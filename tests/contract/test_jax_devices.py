"""Trainings on several devices on JAX, by `keras.distribution`: slices lie on all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_jax("several devices of TensorFlow are not guarded yet")
CHILD = Path(__file__).with_name("jax_devices_child.py")


@pytest.mark.parametrize(("kind", "part"), [("data", [8, 16]), ("model", [8, 8])])
def test_the_same_training_in_slices_on_four_devices(kind, part):
    done = subprocess.run(
        [sys.executable, CHILD, kind], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] > 1e-3
    assert found["distance"] < 1e-5
    assert found["history"] < 1e-5
    assert found["predictions"] < 1e-5
    assert found["notes"] == []
    assert found["sliced"] == [5, 5]
    assert found["same_layout"]
    assert found["kernel_part"] == part
