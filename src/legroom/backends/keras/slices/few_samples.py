"""A few samples of a batch, to try a step on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from legroom.backends.keras.slices.rules import Unshown

__all__ = ["AMONG", "SMALL_SAMPLE", "compare_in_turn", "unlike"]

T = TypeVar("T")

# So many samples are looked at to choose the few.
AMONG = 256
# Images have no lengths, and are long to look at: entries of a sample.
SMALL_SAMPLE = 4096
# Labels of what does not count, beside negative ones: as in pictures of segments.
_IGNORED = 255
_MOST_TRIES = 9


def unlike(heads: Iterable[Any], among: int, few: int) -> list[int]:
    """A few samples that differ in how much of them counts, where any do: masks, lengths, labels.

    Args:
        heads: The first samples of each part of the batch, as arrays.
        among: How many samples these are.
        few: How many are wanted.
    """
    filled = np.zeros(among)
    for head in heads:
        counts = head != 0
        if head.dtype.kind in "iu":
            counts &= (head > 0) & (head != _IGNORED)
        filled += counts.reshape(among, -1).sum(axis=1)
    order = np.argsort(filled, kind="stable")
    return sorted(int(order[i]) for i in np.linspace(0, among - 1, few).round().astype(int))


def compare_in_turn(picked: list[int], samples: int, compare: Callable[[list[int]], T]) -> T:
    """Compare on a few samples, of which the first is a slice by itself; else on their neighbours.

    Args:
        picked: The numbers of the samples.
        samples: How many there are in the batch.
        compare: Compares on samples in this order.

    Raises:
        Refused: If the step can't be sliced, or nothing shows how.
    """
    few = len(picked)
    for number in range(_MOST_TRIES):
        turn, away = number % few, number // few
        try:
            moved = [(one + away) % samples for one in picked]
            return compare([*moved[turn:], *moved[:turn]])
        except Unshown:
            if number == _MOST_TRIES - 1:
                raise
    raise AssertionError  # the last try returns or raises
