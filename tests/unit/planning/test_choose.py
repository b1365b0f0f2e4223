"""Which strategy is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.core.errors import CannotFitError
from legroom.planning.choose import choose, largest_that_fits, slice_time
from legroom.planning.strategies import Strategy


def strategy(name, peak, time, budget, **options):
    return Strategy(name, peak, time, peak <= budget, **options)


def test_the_fastest_that_fits_is_chosen_and_the_others_have_reasons():
    strategies = [
        strategy("as it is", 100, 1.0, 50),
        strategy("slices", 40, 1.1, 50),
        strategy("remat", 45, 1.3, 50),
    ]
    chosen, others, better = choose(strategies, 50, exact=False)
    assert chosen.name == "slices"
    assert {each.name: each.reason for each in others} == {
        "as it is": "does not fit",
        "remat": "slower than slices",
    }
    assert better == 100


def test_exact_passes_over_what_changes_the_result():
    strategies = [strategy("as it is", 100, 1.0, 50), strategy("slices", 40, 1.1, 50, exact=False),
            strategy("remat", 45, 1.3, 50)]  # fmt: skip
    chosen, others, _ = choose(strategies, 50, exact=True)
    assert chosen.name == "remat"
    assert next(w for w in others if w.name == "slices").reason == "would change the result"


def test_nothing_fits():
    strategies = [strategy("as it is", 100, 1.0, 5), strategy("one sample at a time", 10, 9.0, 5)]
    with pytest.raises(CannotFitError, match="The least of these needs 10 B") as caught:
        choose(strategies, 5, exact=False)
    assert caught.value.needed_bytes == 10
    assert caught.value.budget_bytes == 5


def test_only_what_would_change_the_result_fits():
    strategies = [strategy("as it is", 100, 1.0, 50), strategy("slices", 40, 1.1, 50, exact=False)]
    with pytest.raises(CannotFitError, match="leave out exact"):
        choose(strategies, 50, exact=True)


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 2000), st.integers(1, 3000))
def test_the_largest_that_fits_is_the_largest(fixed, each, budget, most):
    def peak(samples):
        return fixed + each * samples

    found = largest_that_fits(peak, budget, most)
    assert found == max(0, min(most, (budget - fixed) // each))


@given(st.integers(1, 500), st.integers(1, 500))
def test_smaller_slices_are_never_faster(batch, size):
    assert slice_time(batch, batch) == 1.0
    assert slice_time(batch, size) >= slice_time(batch, size + 1)
