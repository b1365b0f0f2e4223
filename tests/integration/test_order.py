"""A plan that has a step's ops run in order: in less memory, and the very same training."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("order_child.py")
# Where Keras's own step was seen to run out, and the one in order to run.
CAP = 172 * 2**20


def run(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, CHILD, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """Without a cap and in one, side by side: much of the second is waiting for memory."""
    with ThreadPoolExecutor(2) as pool:
        free, capped = pool.submit(run), pool.submit(run, CAP)
        return free.result(), capped.result()


@pytest.fixture
def seen(both: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    return both[0]


def test_it_is_chosen_where_slices_would_change_the_result(seen):
    assert seen["chosen"] == "ops in order"
    as_it_is, in_order = seen["ways"]["as it is"], seen["ways"]["ops in order"]
    assert in_order[0] < 0.8 * as_it_is[0]
    assert in_order[1] > 1
    assert as_it_is[2] == "does not fit"
    (sliced,) = [way for name, way in seen["ways"].items() if "slices" in name]
    assert sliced[2] == "would change the result"


def test_the_weights_are_those_of_keras_bit_for_bit(seen):
    assert seen["same"] == [True, True]


def test_it_takes_less_and_what_was_predicted(seen):
    plain, ordered = seen["peaks"]
    assert ordered < 0.8 * plain
    assert ordered <= seen["ways"]["ops in order"][0]
    (told,) = seen["told"]
    assert told["slices"] == 1


def test_what_has_an_order_of_its_own_is_refused_with_the_reason(seen):
    assert (
        "ops in order: run_eagerly: ops run in the order of the code"
        in (seen["refused"]["run_eagerly"])
    )
    refused = seen["refused"]["jit_compile"]
    assert "ops in order: XLA chooses the order of what it compiles" in refused


def test_a_cap_that_is_too_small_for_keras_is_survived_without_slices(both):
    _, result = both
    assert result["plain"] == "ResourceExhaustedError"
    assert result["ooms"] == 0
    assert result["whole"]
    assert result["finite"]
