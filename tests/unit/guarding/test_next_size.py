"""How the next slice size is chosen: each rule by a table, then all of them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.guarding.next_size import (
    Known,
    below_failure,
    by_expectation,
    by_trial,
    evened,
    is_good_enough,
    next_size,
    not_far,
    pays_past_plan,
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
    ("expected", "proven", "limit", "size"),
    [
        (150, 100, 256, 150),
        (250, 100, 256, 200),  # twice what was measured, and no further
        (104, 100, 256, None),  # nothing that would be worth it: a trial tells more
        (None, 100, 256, None),
        (104, 100, 100, 104),  # nothing to try
        (None, 100, 100, 0),
    ],
)
def test_one_measurement_does_not_tell_of_sizes_far_from_it(expected, proven, limit, size):
    assert not_far(expected, proven, limit) == size


@pytest.mark.parametrize(
    ("proven", "barred", "enough"),
    [(80, 101, True), (79, 101, False), (1, 2, True), (1, 3, False), (0, 2, False), (0, 1, True)],
)
def test_what_is_near_a_failure_is_not_worth_another(proven, barred, enough):
    assert is_good_enough(proven, barred) == enough


@pytest.mark.parametrize(
    ("expected", "proven", "barred", "size"),
    [(79, 10, 100, 79), (80, 10, 100, 55), (120, 0, 100, 50), (1, 0, 1, 1)],
)
def test_what_is_expected_close_to_a_failure_is_not_relied_on(expected, proven, barred, size):
    assert below_failure(expected, proven, barred) == size


@pytest.mark.parametrize(
    ("proven", "least"), [(0, 1), (1, 2), (16, 18), (31, 34), (32, 34), (160, 170)]
)
def test_a_new_trace_has_to_be_worth_it(proven, least):
    assert worth_a_trace(proven) == least


@pytest.mark.parametrize(
    ("size", "proven", "samples", "pays"),
    [
        (84, 64, 256, False),  # four slices either way
        (86, 64, 256, True),  # three
        (100, 85, 256, False),  # three instead of four, but hardly larger
        (128, 100, 256, True),
    ],
)
def test_past_a_plan_slices_have_to_be_larger_and_fewer(size, proven, samples, pays):
    assert pays_past_plan(size, proven, samples) == pays


@pytest.mark.parametrize(
    ("size", "samples", "proven", "sure", "even"),
    [
        (144, 192, 0, True, 96),  # two slices in any case
        (144, 192, 0, False, 144),  # much smaller: only where it is sure
        (100, 192, 0, False, 96),
        (70, 100, 60, True, 70),  # 50 were less than what fits
        (90, 256, 64, True, 86),
        (90, 256, 80, False, 86),
        (256, 256, 64, True, 256),
    ],
)
def test_slices_of_a_batch_are_as_large(size, samples, proven, sure, even):
    assert evened(size, samples, proven, sure=sure) == even


@pytest.mark.parametrize(
    ("known", "size"),
    [
        (Known(256, proven=64, expected=90), 90),
        (Known(256, proven=64, expected=40), 64),  # it was seen to fit
        (Known(256, proven=64, expected=67), 64),  # not worth a trace
        (Known(256, proven=250, expected=256), 256),  # but the whole batch is
        (Known(256, proven=64, expected=84, planned=True), 64),
        (Known(256, proven=64, expected=86, planned=True), 86),
        (Known(256, proven=0, expected=84, planned=True), 84),
        (Known(256, proven=64, barred=128, expected=120), 96),
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
        (Known(256, proven=64, grows=False, failed=True), 85),  # four even ones fit already
        (Known(256, proven=64, grows=False), 256),  # nothing speaks against it
        (Known(256, proven=64, expected=250, grows=False), 128),
        (Known(256, proven=2, expected=256, grows=False), 256),
        (Known(192, expected=144), 96),
        (Known(192, expected=144, failed=True), 144),
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
