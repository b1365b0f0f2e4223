"""One way through data, which another process can repeat up to a place.

Keras on JAX makes its batches itself, from arrays, generators and sequences, and draws their order
from NumPy's generator. So where the generators of random numbers were is noted, when the way began
and when its first batch was asked for. To come to a place again, they are put back there, and as
many batches are passed over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["Passage", "begin", "leave"]

_Place = dict[str, Any]


def begin(data: Any, place: _Place | None, passed: int) -> Passage:
    """Begin a pass over data, at a place."""
    passage = Passage(data, place, passed)
    passage.reach()
    return passage


def leave(data: Any, left: _Place) -> None:
    """Have data remember what it did when a pass was over: it remembers nothing."""


class Passage:
    """The batches of one iterator.

    Args:
        data: What is gone through.
        place: What another process told of its place, where this one is to begin at it.
        passed: How many batches it had taken there.
    """

    def __init__(self, data: Any, place: _Place | None = None, passed: int = 0) -> None:
        self._place = place
        self._passed = passed
        if place is not None:
            _put(place["created"])
        self._created = _moment()
        self._started: _Place | None = None
        self._inner = iter(data)  # now, as it is done without legroom

    def reach(self) -> None:
        """Pass over what comes before the place; done by the first batch that is asked for."""
        if self._started is not None:
            return
        if self._place is not None and self._place["started"] is not None:
            _put(self._place["started"])
        self._started = _moment()
        for _ in range(self._passed):
            next(self._inner)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.reach()
        return next(self._inner)

    def place(self) -> _Place:
        """How to come to where it is now."""
        return {"created": self._created, "started": self._started}

    def left(self) -> _Place | None:
        """What the data itself remembers when the pass is over."""
        return None


def _moment() -> _Place:
    """Where the generators are that data may draw from."""
    return {"python": random.getstate(), "numpy": np.random.get_state()}


def _put(moment: _Place) -> None:
    random.setstate(moment["python"])
    np.random.set_state(moment["numpy"])
