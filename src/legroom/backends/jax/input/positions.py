"""Where a Keras training on JAX is in its data, and how another process gets there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from keras.src.backend.jax import trainer as keras_trainer
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from legroom.backends.jax.input.passage import Passage
from legroom.backends.keras.input import counted
from legroom.backends.keras.input.epochs import EpochsInData, replace_epochs, watched
from legroom.backends.parts import JAX_EPOCHS
from legroom.backends.places import Position, Watch

__all__ = ["Epochs", "patch_epochs", "shuffles_again", "watched"]


class _Counted(counted.Counted):
    """An iterator over batches that is counted, and can look one batch ahead.

    Args:
        passage: Where batches come from.
        in_turn: Whether they are made when they are taken, and none ahead of that.
        begun: Called when the first one is asked for.
    """

    def __init__(self, passage: Passage, in_turn: bool, begun: Any) -> None:
        super().__init__()
        self._passage = passage
        self._begun = begun
        self._has_begun = False
        self.in_turn = in_turn

    def __next__(self) -> Any:
        if self.watch is not None and self.watch.trains:
            watch, self.watch = self.watch, None
            watch.first_batch_taken(self)
        return super().__next__()

    def place(self) -> dict[str, Any]:
        """How to come to this place again."""
        return self._passage.place()

    def reach(self) -> None:
        """Pass over what comes before the place to begin at."""
        if not self._has_begun:
            self._has_begun = True
            self._begun()
        self._passage.reach()

    def _started(self) -> Iterator[Any]:
        self.reach()
        return self._passage

    def _item_bytes(self, leaf: Any) -> int | None:
        """The bytes of one entry of an array; None for other leaves."""
        known = isinstance(leaf, (jax.Array, np.ndarray))
        return int(leaf.dtype.itemsize) if known else None

    def _array(self, leaf: Any) -> Any:
        """An array's values."""
        return np.asarray(leaf)


class _Source:
    """What Keras asks for iterators."""

    def __init__(self, epochs: Epochs, watch: Watch) -> None:
        self._epochs = epochs
        self._watch = watch
        self._resume: Position | None = None
        self.created = 0  # those that a batch was asked of: before, nothing is drawn for them
        self.current: _Counted | None = None

    def resume(self, position: Position) -> None:
        """Have the next iterator stand at a position."""
        self._resume = position

    def advance(self, position: Position) -> None:
        """Have the iterator that is in use stand at a position: never asked for, see `reset`."""
        raise NotImplementedError

    def pass_over(self, iterators: int) -> None:
        """Have as many iterators been asked for."""
        pipeline = self._epochs.pipeline
        while self.created < iterators:
            if pipeline is not None:
                iter(pipeline)  # each one moves a shuffle on to its next order
            self.created += 1

    def __iter__(self) -> _Counted:
        resume, self._resume = self._resume, None
        consumed, place = 0, None
        if resume is not None:
            self.pass_over(resume.iterators - 1)
            consumed, place = resume.consumed, resume.checkpoint
        # A data set that finds its place by itself begins there; others are passed over.
        passed = 0 if self._epochs.seeks else consumed
        passage = Passage(self._epochs.new_iterator(), place, passed)
        self.current = _Counted(passage, self._epochs.in_turn, self._begun)
        self.current.consumed = consumed
        self.current.begun = place is not None
        if self._watch.waits:
            self.current.watch = self._watch
        return self.current

    def _begun(self) -> None:
        self.created += 1


class Epochs(EpochsInData, keras_trainer.JAXEpochIterator):
    """Keras's epochs over a training's data, watched."""

    def __init__(self, watch: Watch, *args: Any, **kwargs: Any) -> None:
        self._watch = watch
        super().__init__(*args, **kwargs)
        self.source = _Source(self, watch)
        self._done_here = 0

    def _get_iterator(self) -> _Source:
        return self.source

    def new_iterator(self) -> Any:
        """What Keras would take batches from."""
        return super()._get_iterator()

    @property
    def pipeline(self) -> Any:
        """The pipeline of tf.data that it goes through; None for other data."""
        if "tensorflow" in sys.modules and isinstance(self.data_adapter, TFDatasetAdapter):
            return self.data_adapter.get_tf_dataset()
        return None

    @property
    def in_turn(self) -> bool:
        """Whether a batch is made when it is taken, by who takes it, and none ahead of that."""
        threads = getattr(self.data_adapter, "enqueuer", None) is not None
        return self.pipeline is None and not threads and jax.default_backend() == "cpu"

    def checkpoint(self) -> dict[str, Any] | None:
        """How to come to this place in the data again."""
        if self.counted is None or (self._done_here == 0 and not self.goes_on()):
            return None  # the next iterator is still to be asked for
        return self.counted.place()

    def pass_over(self, iterators: int, left: Any = None) -> None:
        """Leave the data as a training that has asked for so many iterators left it."""
        self.source.pass_over(iterators)
        super().pass_over(iterators)

    def __iter__(self) -> Iterator[Any]:
        """An epoch, as Keras asks for it."""
        return self._watched(self._begin)

    def _begin(self) -> Iterator[Any]:
        self._epoch_iterator: Any = self._enumerate_iterator()
        return self._epoch_iterator


def shuffles_again() -> bool:
    """Whether Keras shuffles a `PyDataset`'s batches once more: on JAX it does not."""
    return False


def patch_epochs() -> None:
    """Take our place where Keras makes the epochs over its data."""
    replace_epochs(__name__, JAX_EPOCHS, "JAXEpochIterator", Epochs)
