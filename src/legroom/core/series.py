"""Long series made short, without losing what stands out in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["thinned"]


def thinned(
    series: Sequence[Sequence[float | None]], most: int, keep: Iterable[int] = ()
) -> list[int]:
    """The places of a series to keep, in order, so that no peak and no valley is lost.

    The series is cut into stretches of equal length; of each the lowest and the highest place of
    every curve stays.

    Args:
        series: Curves of the same length; None where nothing is known.
        most: About how many places may stay.
        keep: Places that stay in any case.
    """
    length = len(series[0]) if series else 0
    if length <= most:
        return list(range(length))
    stretches = max(1, most // (2 * len(series)))
    kept = {0, length - 1, *keep}
    for number in range(stretches):
        begin, end = length * number // stretches, length * (number + 1) // stretches
        for curve in series:
            part = curve[begin:end]
            known = [value for value in part if value is not None]
            if known:
                kept.add(begin + part.index(min(known)))
                kept.add(begin + part.index(max(known)))
    return sorted(place for place in kept if 0 <= place < length)
