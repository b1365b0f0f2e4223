"""Two ways of doing the same, timed in turns, so that what else the machine does falls on both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import tensorflow as tf

__all__ = ["take_turns", "untuned"]

# Turns go on until the ratio is known this well (half of a 95 % interval), or for so many seconds.
_PRECISION = 0.01
_FEWEST, _LONGEST = 11, 90.0


def untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    """The same data without tf.data's tuning.

    Whoever lets go of an iterator that tunes itself waits, now and then, until its thread looks
    around again, at 10, 20, 40 … ms: a `fit` of 0.65 s takes 1.27 s then, plain or guarded.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def take_turns(
    plain: Callable[[], float], other: Callable[[], float], *, fewest: int = _FEWEST
) -> dict[str, float]:
    """Compare two runs.

    Args:
        plain: Runs once, and returns the seconds that count.
        other: The same with what is to be measured.
        fewest: Rounds that are taken at least.

    Returns:
        The median of the rounds' ratios, the 95 % interval of that median, and the median seconds.
    """
    times: list[tuple[float, float]] = []
    began = time.monotonic()
    while True:
        if len(times) % 2:
            first = plain()
            times.append((first, other()))
        else:
            second = other()
            times.append((plain(), second))
        ratios = sorted(b / a for a, b in times)
        low, high = _interval(ratios)
        enough = high - low <= 2 * _PRECISION or time.monotonic() - began > _LONGEST
        if enough and len(times) >= fewest:
            break
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "rounds": len(times),
        "plain_seconds": statistics.median(a for a, _ in times),
        "seconds": statistics.median(b for _, b in times),
    }


def _interval(ordered: list[float]) -> tuple[float, float]:
    """The 95 % interval of a median, from the order of what was seen: no distribution assumed."""
    half = 0.98 * len(ordered) ** 0.5
    middle = (len(ordered) - 1) / 2
    low, high = max(0, int(middle - half)), min(len(ordered) - 1, int(middle + half + 1))
    return ordered[low], ordered[high]
