"""Where a training is in its data: counted while it runs, and found again by another process.

Keras asks its data for an iterator once an epoch, or once for all of them, and takes batches from
it. Both are counted here. Another process gets to the same place by asking for as many iterators
(a `shuffle` of tf.data draws a new order for each) and passing over as many batches.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from legroom.backends import patches
from legroom.backends.places import Position, Watch
from legroom.backends.tensorflow.input.counted import Counted
from legroom.backends.tensorflow.input.data_end import keras_at_the_end
from legroom.backends.tensorflow.input.iterators import buffered_bytes, has_shuffle, load_iterator
from legroom.backends.tensorflow.input.streams import find_stream, started_at
from legroom.backends.tensorflow.step.state import global_seed

__all__ = ["Epochs", "patch_epochs", "shuffles_again", "watched"]

_LEAN_BYTES = 2**26
# Seconds that an iterator was used for, before a checkpoint is taken of it: without a shuffle, and
# with one.
_SHORT, _LONG = 1.0, 120.0
_MOST = 2**24  # bytes that a pipeline may hold in its buffers


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

    def advance(self, position: Position) -> None:
        """Have the iterator that is in use stand at a position."""
        current = self.current
        while current is not None and current.consumed < position.consumed:
            next(current)

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

    Of Keras's own class only what every supported version has is used: it asks
    `_distributed_dataset` for iterators, and an epoch is a series of tuples that end in one.

    Attributes:
        order: The order of arrays that nobody seeded.
    """

    def __init__(self, watch: Watch, *args: Any, **kwargs: Any) -> None:
        self._watch = watch
        self.order: _Order | None = None
        with self._drawing_orders(watch.order_seed, kwargs.get("x")):
            super().__init__(*args, **kwargs)
        dataset: Any = vars(self)["_distributed_dataset"]
        if watch.lean and isinstance(dataset, tf.data.Dataset):
            dataset = dataset.with_options(_lean_options())
        self.source = _Source(self, watch, dataset)
        self._distributed_dataset: Any = self.source
        self._done_here = 0
        self._worth_it: float | None = None  # seconds of reading that a checkpoint is worth

    @property
    def counted(self) -> Counted | None:
        """The iterator that batches are taken from."""
        return self.source.current

    @property
    def iterators(self) -> int:
        """Iterators that were asked for so far."""
        return self.source.created

    def let_go(self) -> None:
        """The training is over: its iterator ends now, with its threads, as Keras's own does.

        Left to the garbage collection it may end with the process, and then it hangs: a thread that
        waits for Python's data waits for ever.
        """
        self.source.current = self._current_iterator = None

    def pass_over(self, iterators: int) -> None:
        """Leave the data as a training that has asked for so many iterators left it."""
        while self.source.created < iterators:
            iter(self.source)
        enqueuer = getattr(self.data_adapter, "enqueuer", None)
        if enqueuer is not None:
            enqueuer.stop()

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
            left = total - self._done_here
            # A Keras that forgets what the end cuts short has nothing to tell of an epoch that
            # consists of that alone.
            return left <= 0 or (
                left < self.steps_per_execution
                and keras_at_the_end(self.steps_per_execution).forgets
            )
        return self._done_here > 0 and self.counted is not None and self.counted.peek() is None

    def goes_on(self) -> bool:
        """Whether the iterator of the last epoch is used in this one too."""
        # Before 3.7 there is no such attribute where the user does not count the steps.
        return self.steps_per_epoch is not None and (
            getattr(self, "_current_iterator", None) is not None
        )

    @property
    def seeks(self) -> bool:
        """Whether the data finds its place by itself, as our stand-in for a `PyDataset` does."""
        return hasattr(getattr(self.data_adapter, "py_dataset", None), "seek")

    def __iter__(self) -> Iterator[Any]:
        """An epoch, as Keras 3.7 and later ask for it."""
        return self._watched(super().__iter__)

    def enumerate_epoch(self) -> Iterator[Any]:
        """An epoch, as Keras 3.5 and 3.6 ask for it."""
        return self._watched(super().enumerate_epoch)

    def _watched(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Keras's own epoch, with a word between any two of its executions."""
        self._done_here = 0
        position = self._watch.begin(self)
        epoch = begin()
        steps_before = 0 if position is None else self._pass_over(epoch, position)
        while True:
            self._watch.boundary(self)
            try:
                execution = next(epoch)
            except StopIteration:
                return
            self._steps_seen += steps_before
            steps_before = 0
            self._done_here += self.steps_per_execution
            yield execution

    def _pass_over(self, epoch: Iterator[Any], position: Position) -> int:
        """Begin at a position; returns the steps that Keras has to count as seen before."""
        self._num_batches = position.num_batches
        if self.goes_on():
            self.source.advance(position)  # before 3.7 Keras keeps the one it looked at the data by
        else:
            self.source.resume(position)
        executions = position.step // self.steps_per_execution
        for _ in range(executions):
            next(epoch)
        self._done_here = position.step
        if not executions:
            return position.steps_seen
        self._steps_seen = position.steps_seen
        return 0

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

        def ordered(original: Callable[..., Any]) -> Callable[..., Any]:
            def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Any:
                if seed is not None or tf.executing_eagerly() or value.shape.rank != 1:
                    return original(value, seed, name)
                if value.shape[0] != order.samples:
                    # The samples of one batch, whose order is of no matter.
                    return original(value, drawn % 2**31 or 1, name)
                self.order = order
                return order.permutation.read_value()

            return shuffle

        with patches.replaced("tensorflow:random", "shuffle", ordered):
            yield


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


def shuffles_again() -> bool:
    """Whether Keras shuffles a `PyDataset`'s batches once more, by tf.data: 3.5 does."""
    return "shuffle" in inspect.unwrap(PyDatasetAdapter.get_tf_dataset).__code__.co_names


def _lean_options() -> Any:
    """Buffers and threads of tf.data kept small: the host's memory has run out before."""
    options = tf.data.Options()
    options.autotune.ram_budget = _LEAN_BYTES
    options.threading.private_threadpool_size = 2
    options.experimental_optimization.inject_prefetch = False
    return options


class _Watching(threading.local):
    watch: Watch | None = None
    epochs: Epochs | None = None


_watching = _Watching()


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have the data of the `fit` in this context watched."""
    _watching.watch = watch
    try:
        yield
    finally:
        _watching.watch = None
        epochs, _watching.epochs = _watching.epochs, None
        if epochs is not None:
            epochs.let_go()


def patch_epochs() -> None:
    """Take our place where Keras makes the epochs over its data."""

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            watch, _watching.watch = _watching.watch, None  # the first one of a `fit` is its data
            if watch is None:
                return original(*args, **kwargs)
            _watching.epochs = Epochs(watch, *args, **kwargs)
            return _watching.epochs

        return make

    if not patches.has(__name__):
        patches.put(__name__, "keras.src.backend.tensorflow.trainer", "TFEpochIterator", made)
