"""Which way fits and is fastest. Pure: it is given a prediction of the peak at any slice size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from legroom.core.errors import CannotFit
from legroom.core.units import format_bytes
from legroom.planning.ways import Way

__all__ = ["choose", "largest_that_fits", "slice_time"]

# What a slice costs beside the work of its samples, in samples' time: small slices keep a device
# less busy. A guess, which only orders the ways: no measurement stands behind it.
_SAMPLES_PER_SLICE = 0.4


def slice_time(batch: int, size: int) -> float:
    """The time of a batch in slices, with the whole batch's as 1."""
    if size >= batch:
        return 1.0
    slices = -(-batch // size)
    return (batch + slices * _SAMPLES_PER_SLICE) / (batch + _SAMPLES_PER_SLICE)


def largest_that_fits(peak: Callable[[int], int], budget: int, most: int) -> int:
    """The largest number of samples whose peak is within the budget; 0 if not even one is.

    Args:
        peak: The predicted peak for a number of samples; it does not fall as they grow.
        budget: The bytes there are.
        most: The largest number that is asked for.
    """
    if peak(1) > budget:
        return 0
    low, high = 1, 2
    while high < most and peak(high) <= budget:
        low, high = high, high * 2
    high = min(high, most)
    if peak(high) <= budget:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if peak(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def choose(ways: Sequence[Way], budget: int, *, exact: bool) -> tuple[Way, list[Way], int | None]:
    """Choose among ways.

    Args:
        ways: The ways, predicted.
        budget: The bytes there are.
        exact: Only those that make the same update.

    Returns:
        The chosen one; the others, each with its reason; and the budget at which a faster one
        would fit.

    Raises:
        CannotFit: If none fits.
    """
    usable = [way for way in ways if way.fits and (way.exact or not exact)]
    if not usable:
        known = [way for way in ways if way.peak_bytes is not None and (way.exact or not exact)]
        least = min((way.peak_bytes or 0 for way in known), default=None)
        raise CannotFit(
            _nothing_fits(ways, budget, least, exact), needed_bytes=least, budget_bytes=budget
        )
    chosen = min(usable, key=lambda way: (way.time_factor, way.peak_bytes or 0))
    others = [
        dataclasses.replace(way, reason=way.reason or _reason(way, chosen, exact))
        for way in ways
        if way is not chosen
    ]
    better = [
        way.peak_bytes
        for way in ways
        if way.time_factor < chosen.time_factor
        and way.peak_bytes is not None
        and not way.fits
        and (way.exact or not exact)
    ]
    return chosen, others, min(better, default=None)


def _reason(way: Way, chosen: Way, exact: bool) -> str:
    if not way.fits and way.peak_bytes is not None:
        return "does not fit"
    if exact and not way.exact:
        return "would change the result"
    return f"slower than {chosen.name}"


def _nothing_fits(ways: Sequence[Way], budget: int, least: int | None, exact: bool) -> str:
    lines = [f"No strategy fits this training in {format_bytes(budget)}."]
    for way in ways:
        if way.peak_bytes is not None:
            mark = " (not the same update)" if not way.exact else ""
            lines.append(f"  {way.name}: {format_bytes(way.peak_bytes)}{mark}")
        else:
            lines.append(f"  {way.name}: {way.reason}")
    if least is not None:
        lines.append(
            f"The least of these needs {format_bytes(least)}: provide that much memory, or"
        )
    if exact and any(not way.exact and way.fits for way in ways):
        lines.append("leave out exact, and it is trained in slices; or")
    lines.append("make the model or its inputs smaller.")
    return "\n".join(lines)
