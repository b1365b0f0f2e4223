"""Batches of tf.data that are counted while a training takes them, and its place among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from legroom.backends.keras.input import counted
from legroom.backends.tensorflow.input.iterators import save_iterator

__all__ = ["Counted"]


class Counted(counted.Counted):
    """An iterator over batches that is counted, and can look one batch ahead.

    Args:
        make: Makes the iterator, when it is first needed.
        spec: The types of a batch.
        arrange: Called before it is made.
    """

    ENDS: ClassVar = (StopIteration, tf.errors.OutOfRangeError)

    def __init__(
        self, make: Callable[[], Any], spec: Any, arrange: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self._make = make
        self._arrange = arrange
        self._inner: Any = None
        self._made = time.monotonic()
        self.element_spec = spec

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

    def _started(self) -> Any:
        if self._inner is None:
            if self._arrange is not None:
                self._arrange()
            self._inner = self._make()
        return self._inner

    def _item_bytes(self, leaf: Any) -> int | None:
        """The bytes of one entry of a tensor of numbers; None for other leaves."""
        known = isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.string, tf.variant)
        return int(leaf.dtype.size) if known else None

    def _array(self, leaf: Any) -> Any:
        """A tensor's values."""
        return leaf.numpy()
