"""The memory that TensorFlow trains in, as it is read from TensorFlow itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("pool_child.py")
MIB = 2**20


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in ("TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "LEGROOM_MEMORY"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_capped_cpu(seen: dict[str, Any]) -> None:
    assert seen["limit"] == [300 * MIB, True, 300 * MIB]
    assert seen["in_use"] >= 4 * MIB
    assert seen["device"] == "CPU:0"  # all CPU devices are one memory


def test_a_budget_is_what_the_cap_leaves_for_the_model(seen: dict[str, Any]) -> None:
    """What the model holds is its own; what others hold (here a tensor of 4 MiB) is not."""
    with_model, without, half = seen["budget"]
    weights = 4 * (256 * 4096 + 4096 + 4096 + 1)
    assert with_model == pytest.approx(296 * MIB, abs=0.1 * MIB)
    assert with_model - without == pytest.approx(weights, rel=0.01)
    assert without == 300 * MIB - seen["in_use_then"]
    assert half == 150 * MIB


def test_a_trial_for_a_card_is_not_made_on_the_cpu(seen: dict[str, Any]) -> None:
    assert "TensorFlow finds 0 GPUs" in seen["no card"]
    assert "can't be tried on GPU:0" in seen["largest"]
    assert "Give memory=" in seen["unread"]


def test_the_calls_that_tell_an_allocators_limit_are_there(seen: dict[str, Any]) -> None:
    assert seen["placeholder"] == 256 * MIB  # what TensorFlow says of any CPU: not to be believed
    assert seen["unlisted"] is None


def test_a_script_may_turn_growth_on_under_a_cap(seen: dict[str, Any]) -> None:
    assert "Cannot set memory growth" in seen["growth refused"]  # or this could go
    assert seen["growth asked"] == "true"


def test_a_limit_that_is_not_certain_cuts_nothing_that_fits(seen: dict[str, Any]) -> None:
    assert seen["fits"] == [0, [], 64, 0]  # a slice is the whole batch


def test_slices_begin_with_a_real_out_of_memory_error_there(seen: dict[str, Any]) -> None:
    ooms, tried, size, lost = seen["too large"]
    assert tried[0] == 400
    assert ooms == len(tried) <= 3  # halved once, and looked upward as far as is worth it
    assert 150 <= size < 400
    assert lost == 0


def test_it_is_known_whether_tensorflow_has_started(seen: dict[str, Any]) -> None:
    assert seen["started"] == [False, True]


def test_a_gpu_that_tells_nothing_is_not_certain_and_no_error(seen: dict[str, Any]) -> None:
    assert seen["gpu true"] == ["GPU:0", None, True, True]
    assert seen["gpu false"] == ["GPU:0", None, False, False]
    assert seen["gpu"] == [None, False]
    assert seen["asked"] is False
