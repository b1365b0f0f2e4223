"""Where a training is in its data: counted while it runs, and found again by another process.

Keras asks its data for an iterator once an epoch, or once for all of them, and takes batches from
it. Both are counted here. Another process gets to the same place by asking for as many iterators
(a `shuffle` of tf.data draws a new order for each) and passing over as many batches.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
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
from legroom.backends.keras.input.epochs import EpochsInData, replace_epochs, watched
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


class Epochs(EpochsInData, keras_trainer.TFEpochIterator):
    """Keras's epochs over a training's data, watched.

    Keras's own class asks `_distributed_dataset` for iterators, and an epoch is a series of tuples
    that end in one.

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

    def _forgets_a_cut_end(self) -> bool:
        """Whether this Keras has nothing to tell of steps that the end of the data cuts short."""
        return keras_at_the_end(self.steps_per_execution).forgets

    def __iter__(self) -> Iterator[Any]:
        """An epoch, as Keras 3.7 and later ask for it."""
        return self._watched(super().__iter__)

    def enumerate_epoch(self) -> Iterator[Any]:
        """An epoch, as Keras 3.5 and 3.6 ask for it."""
        return self._watched(super().enumerate_epoch)

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


def patch_epochs() -> None:
    """Take our place where Keras makes the epochs over its data."""
    replace_epochs(__name__, "keras.src.backend.tensorflow.trainer", "TFEpochIterator", Epochs)
