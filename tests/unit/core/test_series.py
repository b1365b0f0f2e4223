"""Long series made short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legroom.core.series import thinned

curves = st.lists(st.one_of(st.none(), st.integers(-100, 100)), max_size=300)


@given(curves, st.integers(4, 50), st.sets(st.integers(0, 299), max_size=5))
def test_peaks_valleys_ends_and_what_is_kept_stay(
    curve: list[int | None], most: int, keep: set[int]
) -> None:
    places = thinned([curve], most, keep)
    assert places == sorted(set(places))
    assert len(places) <= max(len(curve) if len(curve) <= most else 0, most + 2 + len(keep))
    known = [value for value in curve if value is not None]
    left = [curve[place] for place in places if curve[place] is not None]
    if known:
        assert max(left) == max(known)  # type: ignore[type-var]
        assert min(left) == min(known)  # type: ignore[type-var]
    if curve:
        assert places[0] == 0
        assert places[-1] == len(curve) - 1
        assert {place for place in keep if place < len(curve)} <= set(places)


def test_every_curve_keeps_its_own_peak() -> None:
    one, other = [0] * 1000, [0] * 1000
    one[123], other[457] = 5, 7
    assert {123, 457} <= set(thinned([one, other], 40))


def test_nothing_to_thin() -> None:
    assert thinned([], 10) == []
    assert thinned([[1, 2, 3]], 10) == [0, 1, 2]
