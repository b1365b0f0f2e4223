"""What plain Keras trains in a pool, legroom trains in it: whole, and to the same weights.

Models that are heavy for their batches: all gradients held beside the weights and their slots would
not fit where Keras's own step does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

CHILD = Path(__file__).with_name("tight_child.py")
ROOM = 1.06
CASES = [
    ("few", "adam", ""),
    ("few", "adamw", ""),
    ("many", "adam", ""),
    ("many", "sgd", ""),
    ("table", "adam", ""),
    ("few", "adam", "eager"),
]


def train(name: str, optimizer: str, way: str, limit: int, folder: Path) -> dict:
    """Run one child; returns what it printed, and its weights."""
    path = folder / f"{name}-{optimizer}-{way.replace(' ', '-')}.npz"
    done = subprocess.run(
        [sys.executable, CHILD, name, optimizer, way, str(limit), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    with np.load(path) as weights:
        return {**json.loads(line), "weights": list(weights.values())}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    """Every case, plain with room and guarded without."""
    folder = tmp_path_factory.mktemp("tight")

    def compare(case: tuple[str, str, str]) -> tuple[dict, dict]:
        name, optimizer, mode = case
        plain = train(name, optimizer, f"plain {mode}", 4 * 2**30, folder)
        limit = -(-int(plain["peak"] * ROOM) // 2**20) * 2**20
        return plain, train(name, optimizer, f"guarded {mode}", limit, folder)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(compare, CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_it_trains_whole_to_the_same_weights(seen, case):
    plain, guarded = seen[case]
    assert guarded["slice_size"] in (None, 8, 16), guarded["texts"]
    assert guarded["peak"] <= plain["peak"] * ROOM + 2**20
    for mine, theirs in zip(guarded["weights"], plain["weights"], strict=True):
        scale = max(1e-3, np.abs(theirs).max())
        assert np.abs(mine - theirs).max() / scale < 1e-5


def test_where_the_gradients_do_not_fit_that_is_known_before(seen):
    _, guarded = seen["few", "adam", ""]
    assert guarded["ooms"] == 0
    assert any("copy of the weights in main memory" in text for text in guarded["texts"])
