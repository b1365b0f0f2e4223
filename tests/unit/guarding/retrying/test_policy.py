"""The search for a slice size, against memories of all kinds, without any framework."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.guarding.retrying.policy import SliceSearch


def train(search, batch, fits, *, fixed=0, each=100, free=None, measures=True, steps=30):
    """Train with a memory in which slices of `fits` samples are the largest that go through."""
    tried = []
    size = 0
    for _ in range(steps):
        for _ in range(50):
            size = search.propose(batch, free)
            assert 1 <= size <= batch
            tried.append((size, size <= fits))
            if size <= fits:
                search.succeeded(size, free, fixed + each * size if measures else None)
                break
            search.failed(size, free)
            assert size > 1
        else:
            pytest.fail(f"went on failing: {tried}")
    return size, tried


def slices(batch, size):
    return -(-batch // size)


def bound(batch):
    """How many sizes may fail."""
    return math.ceil(math.log2(batch)) + 2 if batch > 1 else 2


@given(st.integers(1, 4000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_blind_search_is_short_and_settles_high(sizes):
    batch, fits = sizes
    search = SliceSearch()
    size, tried = train(search, batch, fits, measures=False)
    assert search.failures() <= bound(batch), tried
    assert slices(batch, size) <= slices(batch, max(1, int(0.8 * fits))), tried


@given(
    st.integers(1, 4000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.integers(0, 100_000),
    st.integers(10, 1000),
    st.integers(0, 9),
    st.one_of(st.none(), st.floats(0.6, 1.6)),
)
def test_measured_search_is_short_and_settles_high(sizes, fixed, each, rest, error):
    batch, fits = sizes
    free = fixed + each * fits + rest
    predict = None if error is None else lambda n: int((fixed + each * n) * error)
    search = SliceSearch(predict=predict)
    size, tried = train(search, batch, fits, fixed=fixed, each=each, free=free)
    assert search.failures() <= bound(batch), tried
    assert slices(batch, size) <= slices(batch, max(1, int(0.8 * fits))), tried


@given(st.integers(2, 2000), st.floats(0.2, 0.9))
def test_a_good_prediction_means_no_failure(batch, part):
    need = {n: 1000 + 50 * n for n in range(1, 4 * batch + 1)}
    free = int(need[batch] * part) + 1060
    search = SliceSearch(predict=need.__getitem__)
    fits = max((n for n in range(1, batch + 1) if need[n] <= free), default=1)
    _, tried = train(search, batch, fits, fixed=1000, each=50, free=free)
    assert all(fitted for _, fitted in tried)


def test_a_size_that_failed_is_not_tried_again_at_this_memory():
    search = SliceSearch()
    search.failed(256, 1000)
    search.failed(128, 1000)
    search.succeeded(64, 1000, None)
    for free in (1000, 990, 1040):
        assert search.propose(256, free) < 128


def test_it_is_tried_again_with_more_memory():
    search = SliceSearch()
    search.failed(256, 1000)
    search.succeeded(128, 1000, 800)
    assert search.propose(256, 1000) < 256
    assert search.propose(256, 4000) == 256


def test_less_memory_means_smaller_slices_before_anything_fails():
    search = SliceSearch(predict=lambda n: 10 * n)
    search.succeeded(100, 2000, 1000)
    assert search.propose(100, 2000) == 100
    assert search.propose(100, 500) <= 50


def test_a_size_fixed_by_hand_stays():
    search = SliceSearch(fixed=7)
    search.failed(7, 10)
    assert search.propose(100, 10) == 7
    assert search.propose(5, 10) == 5


def test_a_prediction_that_does_not_grow_with_the_slice_is_taken_in_proportion():
    search = SliceSearch(predict=lambda size: 700, doubt=1.9)
    # 144, and not 1, which would need as much; two slices, so two of 96.
    assert search.propose(192, free=1000) == 96


def test_what_was_predicted_to_need_nothing_may_fail():
    search = SliceSearch(predict=lambda size: 0)
    search.failed(64, 1000)
    assert search.propose(64, 1000) == 32


def test_past_a_plan_only_what_is_much_larger_is_tried():
    for free, expected in ((1300, 100), (1700, 128)):
        search = SliceSearch(predict=lambda size: 10 * size, start=100)
        assert search.propose(256, free) == 100
        search.succeeded(100, free, 1000)
        assert search.propose(256, free) >= expected
        assert (search.propose(256, free) == 100) == (expected == 100)


def test_past_a_plan_slices_grow_only_where_fewer_of_them_come_of_it():
    # What was measured allows 84: four slices of 64 would become three and a small one.
    search = SliceSearch(predict=lambda size: 10 * size, start=64)
    search.succeeded(64, 920, 640)
    assert search.propose(256, 920) == 64
    # Three slices of 86 are another matter.
    assert search.propose(256, 1150) >= 86


def test_what_stayed_after_the_first_step_is_not_needed_again():
    search = SliceSearch()
    search.succeeded(86, 156, 150, stayed=53)
    assert search.propose(512, 103) >= 86
    assert search.propose(512, 90) < 86


def test_a_compiled_step_grows_by_measurement_and_leaves_room_for_its_one_piece():
    search = SliceSearch(predict=lambda n: 1000 + n, doubt=1.0, alike=False, usable=0.5)
    sizes = []
    for _ in range(12):
        size = search.propose(512, 1100)
        sizes.append(size)
        search.succeeded(size, 1100, 4 * size)
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))
    assert 100 <= sizes[-1] <= 1100 / 2 / 4


@pytest.mark.parametrize("free", [None, 10**12])
@pytest.mark.parametrize("predict", [None, lambda size: 10**6 + 10**4 * size])
@pytest.mark.parametrize("measured", [True, False])
def test_with_room_a_small_batch_before_it_is_no_reason_to_slice(free, predict, measured):
    search = SliceSearch(predict=predict)
    assert search.propose(2, free) == 2
    search.succeeded(2, free, 10**6 if measured else None)
    if measured or free is None or predict is not None:
        assert search.propose(128, free) == 128


def test_a_small_batch_before_it_does_not_hide_that_a_large_one_is_too_much():
    search = SliceSearch(predict=lambda size: 10**6 * size)
    search.succeeded(2, 10**8, 2 * 10**6)
    assert search.propose(1000, 10**8) < 100
