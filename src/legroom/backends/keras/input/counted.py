"""Batches that are counted while a training takes them, and its place among them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from keras import tree

from legroom.backends.places import Watch

__all__ = ["Counted"]

_DIGESTED = 2**20  # bytes of each tensor that a batch is known by


class Counted:
    """An iterator over batches that is counted, and can look one batch ahead.

    What the batches come from, and how their values are read, is the framework's.

    Attributes:
        in_turn: Whether a batch is made when it is taken, and none ahead of that.
        begun: Whether it was there before the place to begin at.
        consumed: Batches that were taken.
        watch: Who waits for the first batch, if somebody does.
    """

    ENDS: ClassVar[tuple[type[BaseException], ...]] = (StopIteration,)

    def __init__(self) -> None:
        self.in_turn = False
        self.begun = False
        self._ahead: list[Any] = []
        self.consumed = 0
        self.watch: Watch | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._ahead.pop() if self._ahead else next(self._started())
        self.consumed += 1
        return batch

    def reach(self) -> None:
        """Pass over what comes before the place to begin at."""
        self._started()

    def peek(self) -> Any:
        """The next batch, which stays the next; None at the end."""
        if not self._ahead:
            try:
                self._ahead.append(next(self._started()))
            except self.ENDS:
                return None
        return self._ahead[0]

    def digest(self) -> int | None:
        """A number that tells the next batch from others; None where there is none."""
        batch = self.peek()
        if batch is None:
            return None
        number = 0
        for leaf in tree.flatten(batch):
            if (size := self._item_bytes(leaf)) is None:
                continue
            if len(leaf.shape):
                row = max(1, int(np.prod(leaf.shape[1:], dtype=np.int64)) * size)
                leaf = leaf[: max(1, _DIGESTED // row)]
            number = zlib.crc32(np.ascontiguousarray(self._array(leaf)).tobytes(), number)
        return number

    def _started(self) -> Iterator[Any]:
        """Where batches come from."""
        raise NotImplementedError

    def _item_bytes(self, leaf: Any) -> int | None:
        """The bytes of one entry of a tensor of numbers; None for other leaves."""
        raise NotImplementedError

    def _array(self, leaf: Any) -> Any:
        """A tensor's values."""
        raise NotImplementedError
