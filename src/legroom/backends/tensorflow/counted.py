"""Batches that are counted while a training takes them, and its place among them."""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends.tensorflow.iterators import save_iterator

if TYPE_CHECKING:
    from legroom.backends.tensorflow.positions import Epochs

__all__ = ["Counted", "Position", "Watch"]

_DIGESTED = 2**20  # bytes of each tensor that a batch is known by


@dataclasses.dataclass
class Position:
    """Where in its data a training is, between two batches.

    Attributes:
        step: Batches of this epoch that are done.
        iterators: Iterators that were asked for so far.
        consumed: Batches that were taken from the last one of them.
        steps_seen: Keras's own count, which may run on over several epochs.
        num_batches: The length of an epoch, where Keras knows it by now.
        checkpoint: tf.data's own, where there is one and much would have to be passed over.
    """

    step: int
    iterators: int
    consumed: int
    steps_seen: int
    num_batches: int | None
    checkpoint: dict[str, Any] | None = None


class Watch(Protocol):
    """Who wants to know about a training's way through its data."""

    @property
    def order_seed(self) -> int:
        """What the order of arrays is drawn from, where nobody has seeded it."""
        ...

    @property
    def lean(self) -> bool:
        """Whether as little as possible is to be read ahead."""
        ...

    @property
    def waits(self) -> bool:
        """Whether it wants to be called before the first batch is trained on."""
        ...

    def begin(self, epochs: Epochs) -> Position | None:
        """An epoch begins: where to begin in it, if not at its start."""
        ...

    def boundary(self, epochs: Epochs) -> None:
        """Between two batches: everything is consistent now."""
        ...

    def first_batch(self, step: Any, run: Callable[[Any], Any], batches: Counted) -> None:
        """Before the first batch is taken."""
        ...


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
