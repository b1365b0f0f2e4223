"""The axes of a traced tensor: which of them are the batch's."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from legroom.core.graphs import Axes

__all__ = ["TRACED_SIZE", "axes_of", "lengths_at"]

# The batch size to trace for: a prime that no layer is as wide as, so that an axis which it
# divides is the batch's.
TRACED_SIZE = 1009


def axes_of(shape: Sequence[int | None]) -> Axes:
    """A shape as a function of the batch size; an axis of open length is the batch's."""
    return _known_axes(tuple(shape))


def lengths_at(shape: Sequence[int | None], samples: int) -> list[int]:
    """The lengths of a shape's axes on so many samples, one for each."""
    return [
        round(math.prod(fixed + each * samples for fixed, each in axes_of([length])))
        for length in shape
    ]


@functools.lru_cache(maxsize=4096)
def _known_axes(shape: tuple[int | None, ...]) -> Axes:
    axes: list[tuple[float, float]] = []
    for length in shape:
        if length is None:
            length = TRACED_SIZE
        while length and length % TRACED_SIZE**2 == 0:
            # All pairs of samples in one axis, as of a matrix that was flattened: it is two.
            axes.append((0.0, 1.0))
            length //= TRACED_SIZE
        if length and length % TRACED_SIZE == 0:
            axes.append((0.0, float(length // TRACED_SIZE)))
        else:
            axes.append((float(length), 0.0))
    return tuple(axes)
