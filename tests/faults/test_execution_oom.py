"""A step in the middle of an execution runs out of memory: the others stay, and it is run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_tensorflow("Keras runs one step an execution on PyTorch")

CHILD = Path(__file__).with_name("execution_child.py")


@pytest.fixture(scope="module")
def seen() -> list[dict]:
    done = subprocess.run(
        [sys.executable, CHILD, "11", "26"],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_it_failed_in_the_loop_where_it_should(seen: list[dict]) -> None:
    assert [one["failed"] for one in seen] == [[3], [2]]


def test_the_training_is_the_same(seen: list[dict]) -> None:
    for one in seen:
        assert one["iterations"] == 27, one
        assert one["off"] < 1e-4, one
        assert one["same_ends"], one
        assert one["loss"][1] == pytest.approx(one["loss"][0], rel=1e-4)
