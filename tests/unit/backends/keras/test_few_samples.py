"""Which few samples a step is tried on."""

from __future__ import annotations

import numpy as np
import pytest

from legroom.backends.keras.slices.few_samples import compare_in_turn, unlike
from legroom.backends.keras.slices.rules import Refused, Unshown


@pytest.mark.parametrize(
    "head",
    [
        np.array([[5, 5], [5, 0], [5, 5], [5, 5], [0, 0], [5, 5]]),  # a mask
        np.array([1.0, 0.0, 2.0, 3.0, 0.0, 4.0]),
        np.array([3, -1, 2, 1, -100, 4]),  # labels that are left out
        np.array([[1, 2], [255, 255], [3, 4], [5, 6], [255, 1], [7, 8]], np.uint8),
        np.array([True, False, True, True, False, True]),
    ],
    ids=["mask", "weights", "negative", "segments", "flags"],
)
def test_some_that_count_and_some_that_do_not(head):
    picked = unlike([head], 6, 2)
    assert len({*picked} & {1, 4}) == 1


def test_all_alike():
    assert unlike([np.ones((6, 2))], 6, 4) == [0, 2, 3, 5]


def test_each_is_alone_in_turn_and_then_their_neighbours():
    tried = []

    def compare(picked):
        tried.append(picked)
        if len(tried) < 6:
            raise Unshown
        return "found"

    assert compare_in_turn([0, 2, 3, 5], 6, compare) == "found"
    assert tried[:2] == [[0, 2, 3, 5], [2, 3, 5, 0]]
    assert tried[4:] == [[1, 3, 4, 0], [3, 4, 0, 1]]


def test_what_nothing_shows_is_refused():
    def compare(picked):
        raise Unshown("no way to tell")

    with pytest.raises(Refused, match="no way to tell"):
        compare_in_turn([0, 1], 2, compare)


def test_other_refusals_end_it():
    tried = []

    def compare(picked):
        tried.append(picked)
        raise Refused("never")

    with pytest.raises(Refused, match="never"):
        compare_in_turn([0, 1], 2, compare)
    assert len(tried) == 1
