"""What a trial is given, from what trials like it have used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.sweeps.packing.needs import SMALLEST_CAP, Cap, Needs, traits

MIB = 2**20
GIB = 2**30


def test_nothing_known_is_an_equal_share() -> None:
    assert Needs(8 * GIB, 4).cap({"units": 8}) == Cap(2 * GIB, GIB)


def test_what_has_run_is_known_with_a_margin() -> None:
    needs = Needs(8 * GIB, 4)
    needs.ran({"units": 8, "lr": 0.1}, 400 * MIB)
    assert needs.cap({"units": 8, "lr": 0.2}) == Cap(600 * MIB, 600 * MIB)
    assert needs.is_measured({"units": 8, "lr": 0.3})
    assert not needs.is_measured({"units": 9, "lr": 0.1})


def test_the_most_that_such_trials_took_counts() -> None:
    needs = Needs(8 * GIB, 4)
    needs.ran({"a": 1}, 800 * MIB)
    needs.ran({"a": 1}, 400 * MIB)
    assert needs.cap({"a": 1}).nbytes == 1200 * MIB


def test_a_guess_is_replaced_by_what_was_measured() -> None:
    needs = Needs(8 * GIB, 4)
    needs.asks({"a": 1}, 6 * GIB)
    assert needs.cap({"a": 1}).nbytes == 6 * GIB
    needs.ran({"a": 1}, GIB)
    assert needs.cap({"a": 1}).nbytes == int(1.5 * GIB)
    needs.asks({"a": 1}, 3 * GIB)  # and what then did not fit counts again
    assert needs.cap({"a": 1}).nbytes == 3 * GIB


def test_an_unknown_config_is_guessed_by_the_nearest() -> None:
    needs = Needs(8 * GIB, 4)
    needs.ran({"units": 8, "fold": 0}, 4 * GIB)
    needs.ran({"units": 2, "fold": 1}, 100 * MIB)
    assert needs.cap({"units": 8, "fold": 2}) == Cap(6 * GIB, 6 * GIB)
    assert needs.cap({"units": 2, "fold": 3}) == Cap(2 * GIB, GIB)


def test_never_more_than_there_is_nor_too_little_to_start() -> None:
    needs = Needs(GIB, 2)
    needs.ran("huge", 5 * GIB)
    needs.ran("tiny", 1000)
    assert needs.cap("huge") == Cap(GIB, GIB)
    assert needs.cap("tiny") == Cap(SMALLEST_CAP, SMALLEST_CAP)
    assert Needs(64 * MIB, 2).cap("any") == Cap(64 * MIB, 64 * MIB)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"lr": 0.1, "n": 3}, {"lr": 0.2, "n": 3}, True),
        ({"n": 3}, {"n": 4}, False),
        ({"n": 3}, {"n": True}, False),
        ({"layers": [8, 8]}, {"layers": [8, 8]}, True),
        ({"layers": [8, 8]}, {"layers": [8, 8, 8]}, False),
        ({"rates": [0.1, 0.2]}, {"rates": [0.3, 0.4]}, True),
        ({"rates": [0.1, 0.2]}, {"rates": [0.1]}, False),
        ({"opt": {"name": "adam", "lr": 0.1}}, {"opt": {"name": "adam", "lr": 1.0}}, True),
        ({"opt": {"name": "adam"}}, {"opt": {"name": "sgd"}}, False),
        (3, 4, False),
        (0.3, 0.4, True),
    ],
)
def test_which_trials_are_alike(one: Any, other: Any, alike: bool) -> None:
    assert (traits(one) == traits(other)) == alike


def test_a_hundred_thousand_shapes_are_not_all_kept() -> None:
    needs = Needs(GIB, 2)
    for number in range(2000):
        needs.ran({"n": number}, 300 * MIB)
    assert len(needs._known) <= 256
    assert needs.is_measured({"n": 1999})


@given(
    memory=st.integers(1, 64).map(lambda n: n * 32 * MIB),
    workers=st.integers(1, 9),
    learned=st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 2**33)), max_size=8
    ),
    asked=st.integers(0, 4),
)
def test_every_cap_can_be_given(
    memory: int, workers: int, learned: list[tuple[int, bool, int]], asked: int
) -> None:
    needs = Needs(memory, workers)
    for shape, ran, size in learned:
        (needs.ran if ran else needs.asks)(shape, size)
    cap = needs.cap(asked)
    assert 1 <= cap.least <= cap.nbytes <= memory
    assert cap.least >= min(SMALLEST_CAP, memory)
