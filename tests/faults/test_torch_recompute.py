"""On PyTorch: a batch that does not fit and may not be sliced trains whole, with less kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_torch("TensorFlow's are in tests/integration/test_tight.py")

CHILD = Path(__file__).with_name("recomputed_child.py")
# About two thirds of what the step needs.
CAP = 400_000_000


def train(cap: int) -> dict:
    done = subprocess.run(
        [sys.executable, str(CHILD), str(cap)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_batch_that_may_not_be_sliced_is_recomputed_to_the_same_weights():
    plain, capped = train(0), train(CAP)
    assert (plain["ooms"], plain["recomputed"]) == (0, [])
    assert capped["ooms"] >= 1
    assert capped["recomputed"]
    assert capped["losses"] == pytest.approx(plain["losses"], rel=1e-6)
    assert capped["weights"] == pytest.approx(plain["weights"], rel=1e-5)
