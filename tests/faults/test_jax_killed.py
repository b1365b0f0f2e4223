"""Trainings on JAX, killed at random moments, come to the same weights, bit for bit."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from .killing import JAX_CHILD, JAX_LOOP_CHILD, Killed, killed_and_finished

pytestmark = pytest.mark.on_jax("test_killed has the same for TensorFlow")

# Each is two calls of `fit`.
CASES = ["arrays", "unbuilt", "sequence", "generator", "pipeline"]


def test_loops_by_hand(tmp_path: Path) -> None:
    """Without Keras, which is not even imported."""
    cases = ["trees", "train_state", "objects"]
    kills = [(signal.SIGKILL, part) for part in (0, 1, 4, 6, 8)]
    killed = killed_and_finished(tmp_path, JAX_LOOP_CHILD, cases, kills, seed=1)
    assert "of the loop resumes after batch" in killed.said


def test_keras_models(tmp_path: Path) -> None:
    """One process trains them all, and is killed once in each part of the way."""
    kills = [(signal.SIGKILL, part) for part in (0, 3, 5, 7, 9)]
    killed = killed_and_finished(tmp_path, JAX_CHILD, CASES, kills, seed=2)
    assert "was finished already: its weights and history are restored" in killed.said


def test_samples_are_seen_once_although_nobody_seeded_their_order(tmp_path: Path) -> None:
    training = Killed(tmp_path, "unseeded_pipeline+arrays", child=JAX_CHILD, KEPT_SEEDED="0")
    assert training.kill(signal.SIGKILL, random.Random(3), training=2)
    out = training.finish()
    assert set(out["arrays counts"]) == {3.0}
    assert set(out["unseeded_pipeline counts"]) == {3.0}
    assert "training 3 resumes" in training.said
    assert "in another order" not in training.said


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_killed_many_times(tmp_path: Path, case: str) -> None:
    kills = [(signal.SIGKILL, part) for part in (0, 0, 1)]
    killed_and_finished(tmp_path, JAX_CHILD, [case], kills, seed=0)
