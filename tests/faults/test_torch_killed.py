"""Trainings on PyTorch, killed at random moments, come to the same weights, bit for bit.

One process trains several small models in turn, and is killed once in each part of the way: what
had finished is there again, what was interrupted resumes. Twenty-one kills, and one SIGTERM.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from .killing import TORCH_CHILD, Killed, killed_and_finished

pytestmark = pytest.mark.on_torch("test_killed has the same for TensorFlow")

# Each is three passes in a plain loop, and two calls of `fit` in Keras.
PLAIN = ["plain:", "plain:own_generator", "plain:noisy", "plain:rows", "plain:own_order",
         "plain:workers"]  # fmt: skip
KERAS = ["arrays", "unbuilt", "sequence", "generator", "loader_noisy", "loader_own_order"]
OTHERS = ["batchwise", "pipeline", "loader_rows", "loader_own_generator", "loader_workers"]


def test_plain_loops(tmp_path: Path) -> None:
    """Without Keras, which is not even imported."""
    kills = [(signal.SIGKILL, part) for part in range(14)]
    killed = killed_and_finished(
        tmp_path, TORCH_CHILD, PLAIN, [*kills, (signal.SIGTERM, 15)], seed=1
    )
    assert "of the loop resumes after batch" in killed.said


def test_keras_models(tmp_path: Path) -> None:
    kills = [(signal.SIGKILL, part) for part in (0, 1, 3, 5, 7, 9)]
    killed = killed_and_finished(tmp_path, TORCH_CHILD, KERAS, kills, seed=2)
    assert "was finished already: its weights and history are restored" in killed.said


def test_samples_are_seen_once_although_nobody_seeded_their_order(tmp_path: Path) -> None:
    training = Killed(tmp_path, "batchwise+arrays", child=TORCH_CHILD, KEPT_SEEDED="0")
    assert training.kill(signal.SIGKILL, random.Random(3), training=2)
    out = training.finish()
    assert set(out["arrays counts"]) == {3.0}
    assert "training 3 resumes" in training.said
    assert "in another order" not in training.said


@pytest.mark.long
@pytest.mark.parametrize("case", [*PLAIN, *KERAS, *OTHERS])
def test_killed_many_times(tmp_path: Path, case: str) -> None:
    kills = [(signal.SIGKILL, part) for part in (0, 0, 1, 1)]
    killed_and_finished(tmp_path, TORCH_CHILD, [case], kills, seed=0)
