"""Trainings killed at random moments come to the same weights, bit for bit.

Each kill is one of a real process by a real signal; the same command, started again, goes on.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from legroom.snapshots.format import read_file

from .killing import SIGNALS, Killed, same

pytestmark = pytest.mark.on_tensorflow("test_torch_killed has the same for PyTorch")

# The training, and how often each sample is seen in it.
CASES = {"arrays": 4, "unbuilt": 4, "pipeline": 4, "filtered": 4, "endless": 4, "sequence": 4,
         "workers": 4, "generator": 3, "eager": 4, "half": 4, "compiled": 4, "recurrent": 4,
         "loop": 3, "streamed": 4}  # fmt: skip
SHORT = {"pipeline": 2, "unbuilt": 2, "sequence": 1, "streamed": 1}  # and how often each is killed


def killed_and_finished(folder: Path, case: str, kills: int, seed: int) -> int:
    """Kill a training so often, let it end, and compare; how often it was really killed."""
    rng = random.Random(f"{case} {seed}")
    training = Killed(folder, case)
    with ThreadPoolExecutor(1) as pool:
        plain = pool.submit(training.undisturbed)
        done = 0
        for number in range(kills):
            done += training.kill(SIGNALS[(number + seed) % 3], rng)
        out = training.finish()
        expected = plain.result()
    assert same(expected, out) == [], training.said[-3000:]
    assert set(out["counts"]) == {CASES[case]}  # every sample of every epoch exactly once
    assert "resumes" in training.said
    assert not (folder / ".legroom").exists()
    return done


@pytest.mark.parametrize(("case", "kills"), SHORT.items())
def test_killed(tmp_path: Path, case: str, kills: int) -> None:
    assert killed_and_finished(tmp_path, case, kills, seed=kills) == kills


def test_the_place_in_a_pipeline_without_an_end_is_found_by_its_checkpoint(tmp_path: Path) -> None:
    """tf.data's own, where it is small: nothing is read again that was read before."""
    training = Killed(tmp_path, "ordered", pause=0.06)
    assert training.kill(SIGNALS[0], random.Random(5), epoch=1)
    newest = max(training.kept.glob("training-0000-*.snapshot"))
    assert read_file(newest).values["checkpoint"] is not None
    out = training.finish()
    assert same(training.undisturbed(), out) == []


def test_samples_are_seen_once_although_nobody_seeded_their_order(tmp_path: Path) -> None:
    training = Killed(tmp_path, "unseeded")
    rng = random.Random(3)
    assert training.kill(SIGNALS[0], rng)
    assert set(training.finish()["counts"]) == {4}


def test_a_damaged_snapshot_is_not_used(tmp_path: Path) -> None:
    """Flipped bits, a file cut short, one of another version: the one before is used."""
    training = Killed(tmp_path, "arrays", pause=0.05)
    rng = random.Random(1)
    assert training.kill(SIGNALS[0], rng)
    first = sorted(training.kept.glob("*.snapshot"))
    damaged = bytearray(first[-1].read_bytes())
    damaged[len(damaged) // 2] ^= 16
    first[-1].write_bytes(damaged)
    assert training.kill(SIGNALS[0], rng)
    assert "damaged" in training.said
    second = sorted(training.kept.glob("*.snapshot"))
    second[-1].write_bytes(second[-1].read_bytes()[: second[-1].stat().st_size // 3])
    other = bytearray(second[0].read_bytes())
    other[len(b"legroom snapshot\n")] = 77
    second[0].write_bytes(other)
    out = training.finish()
    assert "cut short" in training.said or training.said.count("damaged") >= 2
    assert "format 77" in training.said
    assert same(training.undisturbed(), out) == []


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_killed_many_times(tmp_path: Path, case: str) -> None:
    """Seventy kills in all, over all models and inputs."""
    assert killed_and_finished(tmp_path, case, 5, seed=0) >= 4  # the last may come too late
