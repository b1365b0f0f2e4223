"""How the next slice size is chosen: each rule by a table, then all of them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.guarding.retrying.next_size import (
    Known,
    below_failure,
    by_expectation,
    by_trial,
    evened,
    is_good_enough,
    next_size,
    not_far,
    with_fewer_slices,
    worth_a_trace,
)


@pytest.mark.parametrize(
    ("proven", "barred", "limit", "size"),
    [
        (0, None, 256, 256),  # all of it
        (0, 256, 255, 128),  # halves
        (0, 1, 0, 1),
        (64, 128, 127, 96),  # between what fitted and what failed
        (60, None, 256, 80),  # a third more
        (1, None, 256, 2),
        (240, None, 256, 256),  # and no more than there is
    ],
)
def test_where_nothing_tells(proven, barred, limit, size):
    assert by_trial(proven, barred, limit) == size


@pytest.mark.parametrize(
    ("expected", "proven", "least", "size"),
    [
        (150, 100, 128, 150),
        (250, 100, 128, 200),  # twice what was measured, and no further
        (127, 100, 128, None),  # nothing that would be worth it: a trial tells more
        (None, 100, 128, None),
    ],
)
def test_one_measurement_does_not_tell_of_sizes_far_from_it(expected, proven, least, size):
    assert not_far(expected, proven, least) == size


@pytest.mark.parametrize(
    ("proven", "barred", "enough"),
    [(80, 101, True), (79, 101, False), (1, 2, True), (1, 3, False), (0, 2, False), (0, 1, True)],
)
def test_what_is_near_a_failure_is_not_worth_another(proven, barred, enough):
    assert is_good_enough(proven, barred) == enough


@pytest.mark.parametrize(
    ("expected", "least", "barred", "size"),
    [(79, 10, 100, 79), (80, 10, 100, 55), (120, 0, 100, 50), (1, 0, 1, 1)],
)
def test_what_is_expected_close_to_a_failure_is_not_relied_on(expected, least, barred, size):
    assert below_failure(expected, least, barred) == size


@pytest.mark.parametrize(
    ("proven", "least"), [(0, 1), (1, 2), (16, 18), (31, 34), (32, 34), (160, 170)]
)
def test_a_new_trace_has_to_be_worth_it(proven, least):
    assert worth_a_trace(proven) == least


@pytest.mark.parametrize(
    ("samples", "proven", "least"),
    [
        (256, 0, 1),  # whatever fits
        (256, 64, 86),  # 85 make four slices, too
        (256, 65, 86),
        (64, 32, 64),  # all of it, or nothing is won
        (64, 64, 65),  # nothing is fewer than one
        (100, 1, 2),
    ],
)
def test_larger_slices_pay_only_where_there_are_fewer(samples, proven, least):
    assert with_fewer_slices(samples, proven) == least


@pytest.mark.parametrize(
    ("size", "samples", "even"),
    [(144, 192, 96), (100, 192, 96), (70, 100, 50), (90, 256, 86), (256, 256, 256), (1, 5, 1)],
)
def test_slices_of_a_batch_are_as_large(size, samples, even):
    assert evened(size, samples) == even


@pytest.mark.parametrize(
    ("known", "size"),
    [
        (Known(256, proven=64, expected=90), 90),
        (Known(256, proven=64, expected=40), 64),  # it was seen to fit
        (Known(256, proven=64, expected=67), 64),  # not worth a trace
        (Known(256, proven=250, expected=256), 256),  # but the whole batch is
        (Known(256, proven=64, expected=84), 64),  # four slices either way
        (Known(256, proven=80, expected=99, planned=True), 80),  # fewer, but hardly larger
        (Known(256, proven=64, expected=86, planned=True), 86),
        (Known(256, proven=0, expected=84, planned=True), 84),
        (Known(256, proven=64, barred=128, expected=120), 107),
    ],
)
def test_where_something_tells(known, size):
    assert by_expectation(known, known.expected) == size


@pytest.mark.parametrize(
    ("known", "size"),
    [
        (Known(256), 256),
        (Known(256, barred=256, failed=True), 128),
        (Known(256, barred=1, failed=True), 1),
        (Known(256, proven=110, barred=128, expected=127, failed=True), 110),
        (Known(256, proven=64, grows=False, failed=True), 86),  # three
        (Known(256, proven=64, grows=False), 256),  # nothing speaks against it
        (Known(256, proven=64, expected=250, grows=False), 128),
        (Known(256, proven=2, expected=256, grows=False), 256),
        (Known(192, expected=144), 96),
        (Known(64, proven=32, barred=64, expected=60, failed=True), 32),  # two in any case
        (Known(12, proven=4, barred=7, failed=True), 6),  # 5 would be three slices, as 4 are
    ],
)
def test_all_rules_together(known, size):
    assert next_size(known) == size


@given(
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.none() | st.integers(1, 5000),
    st.none() | st.integers(1, 5000),
    st.booleans(),
    st.booleans(),
)
def test_it_is_a_size_of_this_batch_and_none_that_failed(
    samples, proven, barred, expected, grows, planned
):
    if barred is not None:
        proven = min(proven, barred - 1)
    proven = min(proven, samples)
    known = Known(
        samples, proven, barred, expected, grows=grows, planned=planned, failed=barred is not None
    )
    size = next_size(known)
    assert max(1, proven) <= size <= max(1, known.limit)
    assert (
        size == max(1, proven) or -(-samples // size) < -(-samples // max(1, proven)) or not proven
    )
