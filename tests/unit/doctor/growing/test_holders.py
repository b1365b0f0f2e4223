"""Who holds what: containers, variables, and how they are called."""

from __future__ import annotations

import collections
import ctypes
import functools
import sys
from typing import Any

import numpy as np
import pytest

from legroom.doctor.growing.census import count_holders, grown_holders, name_of_holder
from legroom.doctor.growing.culprits import Evidence
from legroom.doctor.growing.holders import Holders
from legroom.doctor.growing.object_findings import Keeping, holder_finding
from legroom.doctor.growing.roots import grown_roots, path_to, weigh_roots
from legroom.doctor.growing.series import LoopReading, LoopSeries

MEGABYTE = 125_000  # doubles
SEEN = Evidence("train.py:3", "iteration", 10, 1_000_000.0)


def weigh(value: Any) -> tuple[str, int] | None:
    return Holders().weigh(value)


def test_the_container_that_takes_in_is_named_and_not_what_holds_it() -> None:
    log: dict[str, Any] = {"outputs": collections.deque(), "best": np.zeros(MEGABYTE)}
    log["outputs"].append(np.zeros(MEGABYTE))
    before = count_holders(weigh)
    log["outputs"].extend(np.zeros(MEGABYTE) for _ in range(4))
    (identity, held), *others = grown_holders(before, count_holders(weigh), 4)
    assert (others, held.count, held.bytes) == ([], 4, 4_000_000)
    name, _ = name_of_holder(identity, [sys._getframe()])
    assert name == "the deque `log['outputs']`"


def test_a_list_that_c_code_has_not_filled_is_left_alone() -> None:
    """To touch its entry would end the process; TensorFlow leaves such lists behind."""
    make = ctypes.pythonapi.PyList_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_ssize_t]
    unfilled = make(1)
    assert id(unfilled) not in count_holders(weigh)


class Node:
    def __init__(self, before: Any, value: Any) -> None:
        self.before, self.value = before, value


def test_what_a_variable_leads_to() -> None:
    @functools.cache
    def remembered(number: int) -> Any:
        return np.zeros(MEGABYTE)

    node = Node(None, np.zeros(MEGABYTE))
    array = np.zeros(MEGABYTE)
    before = weigh_roots([sys._getframe()], weigh)
    for k in range(3):
        node = Node(node, np.zeros(MEGABYTE))
        array = np.concatenate([array, np.zeros(2 * MEGABYTE)])
        remembered(k)
    grown = dict(grown_roots(before, weigh_roots([sys._getframe()], weigh), 3))
    assert (grown["node"].count, grown["node"].bytes) == (3, 3_000_000)
    assert (grown["array"].count, grown["array"].bytes) == (0, 6_000_000)
    assert grown["remembered"].bytes == 3_000_000
    path = path_to(id(node.before.value), [sys._getframe()])
    assert path == "node.before.value"


@pytest.mark.parametrize(
    ("kept", "id", "severity", "words"),
    [
        (Keeping("tensor", "the list `log`", "a.py:7", 1, 1e6), "LR105", "warning",
         "The list `log` takes in a tensor of 1.00 MB each iteration, made at a.py:7"),
        (Keeping("History", "the list `log`", "", 2, 4e6), "LR108", "warning",
         "takes in 2 Histories of 2.00 MB each"),
        (Keeping("gradient tape", "the list `log`", "", 1, 0), "LR105", "warning",
         "memory grows by 1.00 MB each iteration"),
        (Keeping("array", "the deque `log`", "", 1, 1e6, 500), "LR109", "note", "500 entries"),
        (Keeping("array", "`seen`", "", 0, 1e6), "LR109", "note",
         "What `seen` holds grows by 1.00 MB of arrays each iteration."),
        (Keeping("tensor", "", "a.py:7", 1, 1e6), "LR105", "warning",
         "Each iteration leaves a tensor of 1.00 MB, made at a.py:7; what holds them was not"),
    ],
)  # fmt: skip
def test_what_is_said(kept: Keeping, id: str, severity: str, words: str) -> None:
    found = holder_finding(SEEN, kept)
    assert (found.id, found.severity) == (id, severity)
    assert words in found.text
    assert found.bytes == round(kept.bytes or SEEN.slope)


@pytest.mark.parametrize(
    ("megabytes", "each"),
    [
        ([100, 150, 200, 250], 50),
        ([100, 150, 200], 50),
        ([100, 150], 0),  # too few
        ([100, 150, 150, 200], 0),  # one round left nothing
        ([100, 110, 120, 130], 0),  # not worth a word
        ([100, 400, 440, 480], 0),  # a warm-up, and little after it
    ],
)
def test_a_short_loop_leaps_or_not(megabytes: list[int], each: int) -> None:
    series = LoopSeries("train.py:3")
    for k, size in enumerate(megabytes, 1):
        series.add(LoopReading(k, size * 10**6, size * 10**6, None))
    assert series.short
    assert series.leaps() == each * 1e6
