"""Where all generators of random numbers are in one moment: Python's, NumPy's, the framework's."""

from __future__ import annotations

from typing import Any

import numpy as np

from legroom.backends.base import State
from legroom.snapshots.randomness import Randomness, randomness, set_randomness
from legroom.snapshots.values import decode

__all__ = ["RandomNumbers", "set_unmoved"]


class RandomNumbers:
    """The generators as they are now.

    Attributes:
        arrays: What the others refer to.
        randomness: Python's and NumPy's.
        seeds: The framework's and Keras's.

    Args:
        state: How the framework's are read.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.arrays: list[Any] = []
        self.randomness = randomness(self.arrays)
        self.seeds = state.seeds(self.arrays)

    @property
    def taken(self) -> tuple[Randomness, list[Any]]:
        """Python's and NumPy's, with the arrays they refer to."""
        return self.randomness, self.arrays

    def put_back(self) -> None:
        """Have all of them stand there again."""
        set_randomness(self.randomness, self.arrays)
        self._state.set_seeds(self.seeds, self.arrays)


def set_unmoved(kept: Randomness, arrays: list[Any], before: Any, after: Any) -> None:
    """Put Python's and NumPy's random numbers back, unless the data draws from them.

    Data that draws has just drawn, on its way to the next batch; its numbers are right as they
    are, and it may be drawing more.

    Args:
        kept: Where they were.
        arrays: What that refers to.
        before: Where they were before the data drew, with its arrays.
        after: Where they were after it.
    """
    set_randomness({name: kept[name] for name in kept if _same(before, after, name)}, arrays)


def _same(before: Any, after: Any, name: str) -> bool:
    """Whether a generator has not moved."""
    one = decode(before[0][name], before[1])
    other = decode(after[0][name], after[1])
    if name == "numpy":
        return one[2:] == other[2:] and bool(np.array_equal(one[1], other[1]))
    return bool(one == other)
