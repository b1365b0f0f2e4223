"""Batches that are counted while a training takes them, and its place among them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends.places import Watch
from legroom.backends.tensorflow.input.iterators import save_iterator

__all__ = ["Counted"]

_DIGESTED = 2**20  # bytes of each tensor that a batch is known by


class Counted:
    """An iterator over batches that is counted, and can look one batch ahead."""

    def __init__(
        self, make: Callable[[], Any], spec: Any, arrange: Callable[[], None] | None
    ) -> None:
        self._make = make
        self._arrange = arrange
        self._inner: Any = None
        self._ahead: list[Any] = []
        self._made = time.monotonic()
        self.element_spec = spec
        self.consumed = 0
        self.watch: Watch | None = None  # set where someone waits for the first batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._ahead.pop() if self._ahead else next(self._started())
        self.consumed += 1
        return batch

    def peek(self) -> Any:
        """The next batch, which stays the next; None at the end."""
        if not self._ahead:
            try:
                self._ahead.append(next(self._started()))
            except (StopIteration, tf.errors.OutOfRangeError):
                return None
        return self._ahead[0]

    @property
    def inner(self) -> Any:
        """The iterator itself, for callers that count what they take; None if a batch is ahead."""
        return None if self._ahead else self._started()

    @property
    def seconds(self) -> float:
        """How long it has been used."""
        return time.monotonic() - self._made

    def checkpoint(self) -> dict[str, Any] | None:
        """tf.data's own checkpoint of the place; None where there is none."""
        if self._ahead or self._inner is None:
            return None  # it has been moved on already, or is not even made
        return save_iterator(self._inner)

    def digest(self) -> int | None:
        """A number that tells the next batch from others; None where there is none."""
        batch = self.peek()
        if batch is None:
            return None
        number = 0
        for leaf in tree.flatten(batch):
            if isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.string, tf.variant):
                if leaf.shape.rank:
                    row = max(1, int(np.prod(leaf.shape[1:], dtype=np.int64)) * leaf.dtype.size)
                    leaf = leaf[: max(1, _DIGESTED // row)]
                number = zlib.crc32(np.ascontiguousarray(leaf.numpy()).tobytes(), number)
        return number

    def _started(self) -> Any:
        if self._inner is None:
            if self._arrange is not None:
                self._arrange()
            self._inner = self._make()
        return self._inner
