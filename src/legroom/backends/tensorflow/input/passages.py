"""Passes over data of a hand-written loop: what came before a place is read and passed over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["begin", "leave"]


class _Passage:
    """The batches of one pass."""

    def __init__(self, data: Any, passed: int) -> None:
        self._batches = iter(data)
        for _ in range(passed):
            next(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def place(self) -> None:
        """Nothing but the number of batches tells the place."""

    def left(self) -> None:
        """Nothing is known that data remembers."""


def begin(data: Any, place: dict[str, Any] | None, passed: int) -> _Passage:
    """Begin a pass over data, behind some of its batches."""
    return _Passage(data, passed)


def leave(data: Any, left: dict[str, Any]) -> None:
    """Nothing is known that data remembers."""
