"""Where a training is in its data: counted while it runs, and found again by another process.

Keras asks its data for an iterator once an epoch, or once for all of them, and takes batches from
it. Both are counted here. Another process gets to the same place by asking for as many iterators
(a `shuffle` of tf.data draws a new order for each) and passing over as many batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from legroom.backends import patches
from legroom.backends.tensorflow.iterators import (
    buffered_bytes,
    has_shuffle,
    load_iterator,
    save_iterator,
)
from legroom.backends.tensorflow.state import global_seed
from legroom.backends.tensorflow.streams import find_stream, started_at

__all__ = ["Counted", "Epochs", "Position", "Watch", "patch_epochs", "watched"]

_LEAN_BYTES = 2**26
# Seconds that an iterator was used for, before a checkpoint is taken of it: without a shuffle, and
# with one.
_SHORT, _LONG = 1.0, 120.0
_MOST = 2**24  # bytes that a pipeline may hold in its buffers
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


class _Source:
    """What Keras asks for iterators."""

    def __init__(self, epochs: Epochs, watch: Watch, dataset: Any) -> None:
        self._epochs = epochs
        self._watch = watch
        self._dataset = dataset
        self._resume: Position | None = None
        self.created = 0
        self.current: Counted | None = None

    def resume(self, position: Position) -> None:
        """Have the next iterator stand at a position."""
        self._resume = position

    def __iter__(self) -> Counted:
        resume, self._resume = self._resume, None
        if resume is not None:
            while self.created < resume.iterators - 1:
                iter(self._dataset)  # each one moves a shuffle on to its next order
                self.created += 1
        self.created += 1
        number, order = self.created, self._epochs.order
        consumed = 0 if resume is None else resume.consumed
        # A data set that finds its place by itself begins there; others are passed over.
        inner = self._skipping(
            0 if self._epochs.seeks else consumed, None if resume is None else resume.checkpoint
        )
        self.current = Counted(
            inner,
            getattr(self._dataset, "element_spec", None),
            None if order is None else functools.partial(order.arrange, number),
        )
        self.current.consumed = consumed
        if self._watch.waits:
            self.current.watch = self._watch
        return self.current

    def _skipping(self, count: int, checkpoint: dict[str, Any] | None) -> Callable[[], Any]:
        """A way to an iterator that has passed over so many batches, when it is first needed."""
        if not count:
            inner = iter(self._dataset)  # now, as Keras does it
            return lambda: inner
        if isinstance(self._epochs.data_adapter, ArrayDataAdapter) and isinstance(
            self._dataset, tf.data.Dataset
        ):
            skipping = self._dataset.skip(count)
            return lambda: iter(skipping)

        def make() -> Any:
            inner = started_at(self._dataset, count)
            if inner is not None:
                return inner
            # One by one: whatever a batch does on its way, random numbers or counters, it does.
            inner = iter(self._dataset)
            if checkpoint is None or not load_iterator(inner, checkpoint):
                for _ in range(count):
                    next(inner)
            return inner

        return make


class Epochs(keras_trainer.TFEpochIterator):
    """Keras's epochs over a training's data, watched.

    Attributes:
        order: The order of arrays that nobody seeded.
    """

    def __init__(self, watch: Watch, *args: Any, **kwargs: Any) -> None:
        self._watch = watch
        self.order: _Order | None = None
        with self._drawing_orders(watch.order_seed, kwargs.get("x")):
            super().__init__(*args, **kwargs)
        dataset: Any = self._distributed_dataset
        if watch.lean and isinstance(dataset, tf.data.Dataset):
            dataset = dataset.with_options(_lean_options())
        self.source = _Source(self, watch, dataset)
        self._steps_before = 0
        self._done_here = 0
        self._worth_it: float | None = None  # seconds of reading that a checkpoint is worth

    @property
    def counted(self) -> Counted | None:
        """The iterator that batches are taken from."""
        return self.source.current

    def position(self) -> Position:
        """Where the training is now."""
        current = self.source.current
        starting = self._done_here == 0 and not self.goes_on()
        return Position(
            step=self._done_here,
            iterators=self.source.created + (1 if starting else 0),
            consumed=0 if starting or current is None else current.consumed,
            steps_seen=self._steps_seen if self.goes_on() else self._done_here,
            num_batches=self._num_batches,
        )

    def checkpoint(self) -> dict[str, Any] | None:
        """tf.data's own checkpoint of the place, where it is small and worth it.

        After one of a shuffle was loaded, this iterator goes on exactly, but a later one of the
        same data may draw another order than it would have. So there must be really much to pass
        over before one is used.
        """
        current = self.counted
        if self._worth_it is None:
            self._worth_it = float("inf")
            if isinstance(self.data_adapter, TFDatasetAdapter):
                dataset = self.data_adapter.get_tf_dataset()
                held = None if find_stream(dataset) else buffered_bytes(dataset)
                if held is not None and held <= _MOST:
                    self._worth_it = _LONG if has_shuffle(dataset) else _SHORT
        if current is None or current.seconds < self._worth_it:
            return None
        taken = current.checkpoint()
        if taken is None:
            self._worth_it = float("inf")
        return taken

    def over(self) -> bool:
        """Whether the epoch has no further batch, as far as that is known without an end."""
        total = self.steps_per_epoch or self._num_batches
        if total:
            return self._done_here >= total
        return self._done_here > 0 and self.counted is not None and self.counted.peek() is None

    def goes_on(self) -> bool:
        """Whether the iterator of the last epoch is used in this one too."""
        return self.steps_per_epoch is not None and self._current_iterator is not None

    def _get_iterator(self) -> Any:
        return self.source

    def __iter__(self) -> Any:
        self._done_here = 0
        position = self._watch.begin(self)
        self._epoch_iterator = self._enumerate_iterator()
        if position is not None:
            self._begin_at(position)
        return self

    def _begin_at(self, position: Position) -> None:
        self._num_batches = position.num_batches
        self.source.resume(position)
        executions = position.step // self.steps_per_execution
        for _ in range(executions):
            next(self._epoch_iterator)
        self._done_here = position.step
        self._steps_before = position.steps_seen - executions * self.steps_per_execution
        if executions:
            self._steps_seen = position.steps_seen
            self._steps_before = 0

    @property
    def seeks(self) -> bool:
        """Whether the data finds its place by itself, as our stand-in for a `PyDataset` does."""
        return hasattr(getattr(self.data_adapter, "py_dataset", None), "seek")

    def __next__(self) -> Any:
        self._watch.boundary(self)
        begin, end, iterator = next(self._epoch_iterator)
        if self._steps_before:
            self._steps_seen += self._steps_before
            self._steps_before = 0
        self._done_here = end + 1
        return begin, end, iterator

    @contextlib.contextmanager
    def _drawing_orders(self, drawn: int, x: Any) -> Iterator[None]:
        """Give arrays that nobody seeded an order that can be found again.

        Keras shuffles them with a random op. With a seed set for all of TensorFlow its order is
        the same in every epoch and every process, and is left as it is. Without one it can't be
        repeated: a permutation of ours is used then.
        """
        leaf = next((leaf for leaf in tree.flatten(x) if hasattr(leaf, "shape")), None)
        if global_seed() is not None or leaf is None or not leaf.shape:
            yield
            return
        order = _Order(int(leaf.shape[0]), drawn)
        original = tf.random.shuffle

        def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Any:
            if seed is not None or tf.executing_eagerly() or value.shape.rank != 1:
                return original(value, seed, name)
            if value.shape[0] != order.samples:
                # The samples of one batch, whose order is of no matter.
                return original(value, drawn % 2**31 or 1, name)
            self.order = order
            return order.permutation.read_value()

        tf.random.shuffle = shuffle
        try:
            yield
        finally:
            tf.random.shuffle = original


class _Order:
    """The order of samples, drawn anew for each iterator."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples = samples
        self._seed = seed
        with tf.device("CPU:0"):
            self.permutation = tf.Variable(
                tf.range(samples, dtype=tf.int64), trainable=False, name="legroom_order"
            )

    def arrange(self, number: int) -> None:
        """Set the order of one iterator."""
        generator = np.random.Generator(np.random.PCG64([self._seed, number]))
        self.permutation.assign(generator.permutation(self.samples))


def _lean_options() -> Any:
    """Buffers and threads of tf.data kept small: the host's memory has run out before."""
    options = tf.data.Options()
    options.autotune.ram_budget = _LEAN_BYTES
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.inject_prefetch = False
    return options


class _Watching(threading.local):
    watch: Watch | None = None


_watching = _Watching()


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have the data of the `fit` in this context watched."""
    _watching.watch = watch
    try:
        yield
    finally:
        _watching.watch = None


def patch_epochs() -> None:
    """Take our place where Keras makes the epochs over its data."""

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            watch, _watching.watch = _watching.watch, None  # the first one of a `fit` is its data
            return original(*args, **kwargs) if watch is None else Epochs(watch, *args, **kwargs)

        return make

    if not patches.has(__name__):
        patches.put(__name__, keras_trainer, "TFEpochIterator", made)
