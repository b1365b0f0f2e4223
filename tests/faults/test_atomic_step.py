"""Wherever an allocation fails, a step has happened wholly or not at all.

SQLite tests its out-of-memory paths by failing every allocation in turn; here a ballast leaves
less and less memory free, so that the failure falls into the forward pass, the backward pass and
the optimizer's own update. Each failure costs TensorFlow's ten seconds of waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_tensorflow(
    "is about TensorFlow's allocator; see test_torch_atomic_step"
)

CHILD = Path(__file__).with_name("ballast_child.py")

# Model, optimizer, mode, slice size (0: whole), free memory as parts of what the step needs.
SHORT = [
    ("cnn", "adam", "graph", 0, (0.15, 0.4, 0.65, 0.9)),
    ("weights", "adam", "graph", 0, (0.05, 0.35, 0.5, 0.7)),
    ("weights", "sgd", "graph", 4, (0.2, 0.5)),
    ("batchnorm", "adamw", "graph", 0, (0.3, 0.7)),
    ("batchnorm", "adam", "eager", 0, (0.3, 0.6)),
    ("transformer", "adamw", "mixed", 0, (0.3, 0.8)),
    ("lstm", "adam", "graph", 0, (0.3, 0.7)),
    ("weights", "nadam", "graph", 0, (0.4,)),
    ("weights", "adam", "lean", 0, (0.2, 0.5, 0.8)),
    ("batchnorm", "adamw", "eager lean", 0, (0.5,)),
    ("cnn", "sgd", "eager", 4, (0.4,)),
    ("followed", "sgd", "graph", 4, (0.7, 0.9)),
]
MODELS = ("cnn", "batchnorm", "lstm", "transformer", "weights", "followed")
LONG = [
    (model, optimizer, mode, slice_size, tuple((i + 0.5) / 5 for i in range(5)))
    for number, model in enumerate(MODELS)
    for optimizer in ("sgd", "adam", "adamw")
    for mode, slice_size in (
        ("graph", 0),
        (("eager", "mixed", "graph")[number % 3], (0, 0, 4)[number % 3]),
        ("graph", 4),
        (("lean", "eager lean")[number % 2], 0),
    )
]


def run(case: tuple[str, str, str, int, tuple[float, ...]]) -> list[dict]:
    """Run one child; returns what it saw at each level."""
    model, optimizer, mode, slice_size, levels = case
    done = subprocess.run(
        [sys.executable, CHILD, model, optimizer, mode, str(slice_size), *map(str, levels)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(seen) == len(levels)
    return seen


def check(cases: list) -> list[dict]:
    """Run cases three at a time (most of it is waiting), and look at each level."""
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, cases))
    for case, levels in zip(cases, results, strict=True):
        for seen in levels:
            if seen["failed_at"] is not None:
                assert seen["untouched"], (case, seen)
                # TensorFlow itself loses the gradients it had already computed when eager
                # `tape.gradient` runs out of memory, with or without legroom.
                assert seen["left"] <= 1.05 or case[2].startswith("eager"), (case, seen)
            assert seen["same"], (case, seen)
    return [seen for levels in results for seen in levels]


def test_twenty_levels_of_free_memory() -> None:
    seen = check(SHORT)
    assert len(seen) >= 20
    failed = [level["failed_at"] for level in seen if level["failed_at"]]
    assert len(failed) >= 12, "too few levels were low enough to fail"
    assert any(op.startswith("gradient_tape/") for op in failed), "none fell into the gradients"
    # The optimizer's ops have no layer's scope around them.
    assert any("/" not in op and op != "?" for op in failed), "none fell into the update"


@pytest.mark.long
def test_two_hundred_levels_of_free_memory() -> None:
    seen = check(LONG)
    assert len(seen) >= 200
    assert sum(level["failed_at"] is not None for level in seen) >= 80
