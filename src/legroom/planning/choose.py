"""Which strategy fits and is fastest. Pure: it is given the predicted peak at any slice size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from legroom.core.errors import CannotFitError
from legroom.core.units import format_bytes
from legroom.planning.strategies import Strategy

__all__ = ["choose", "largest_that_fits", "slice_time"]

# What a slice costs beside the work of its samples, in samples' time: small slices keep a device
# less busy. A guess, which only orders the strategies: no measurement stands behind it.
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


def choose(
    strategies: Sequence[Strategy], budget: int, *, exact: bool
) -> tuple[Strategy, list[Strategy], int | None]:
    """Choose among strategies.

    Args:
        strategies: The strategies, predicted.
        budget: The bytes there are.
        exact: Only those that make the same update.

    Returns:
        The chosen one; the others, each with its reason; and the budget at which a faster one
        would fit.

    Raises:
        CannotFitError: If none fits.
    """
    usable = [
        strategy for strategy in strategies if strategy.fits and (strategy.exact or not exact)
    ]
    if not usable:
        known = [
            strategy
            for strategy in strategies
            if strategy.peak_bytes is not None and (strategy.exact or not exact)
        ]
        least = min((strategy.peak_bytes or 0 for strategy in known), default=None)
        raise CannotFitError(
            _nothing_fits(strategies, budget, least, exact), needed_bytes=least, budget_bytes=budget
        )
    chosen = min(usable, key=lambda strategy: (strategy.time_factor, strategy.peak_bytes or 0))
    others = [
        dataclasses.replace(strategy, reason=strategy.reason or _reason(strategy, chosen, exact))
        for strategy in strategies
        if strategy is not chosen
    ]
    better = [
        strategy.peak_bytes
        for strategy in strategies
        if strategy.time_factor < chosen.time_factor
        and strategy.peak_bytes is not None
        and not strategy.fits
        and (strategy.exact or not exact)
    ]
    return chosen, others, min(better, default=None)


def _reason(strategy: Strategy, chosen: Strategy, exact: bool) -> str:
    if not strategy.fits and strategy.peak_bytes is not None:
        return "does not fit"
    if exact and not strategy.exact:
        return "would change the result"
    return f"slower than {chosen.name}"


def _nothing_fits(
    strategies: Sequence[Strategy], budget: int, least: int | None, exact: bool
) -> str:
    lines = [f"No strategy fits this training in {format_bytes(budget)}."]
    for strategy in strategies:
        if strategy.peak_bytes is not None:
            mark = " (not the same update)" if not strategy.exact else ""
            lines.append(f"  {strategy.name}: {format_bytes(strategy.peak_bytes)}{mark}")
        else:
            lines.append(f"  {strategy.name}: {strategy.reason}")
    if least is not None:
        lines.append(
            f"The least of these needs {format_bytes(least)}: provide that much memory, or"
        )
    if exact and any(not strategy.exact and strategy.fits for strategy in strategies):
        lines.append("leave out exact, and it is trained in slices; or")
    lines.append("make the model or its inputs smaller.")
    return "\n".join(lines)
