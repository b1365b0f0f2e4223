"""Where a Keras training on PyTorch is in its data, and how another process gets there.

Keras turns whatever it is given into a loader of PyTorch, and asks that for an iterator once an
epoch, or once for all of them. A pipeline of tf.data is asked for as many iterators as before,
because its shuffles draw a new order for each; all else comes to its place by where the generators
of random numbers were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from keras.src.backend.torch import trainer as keras_trainer
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from legroom.backends.base import named
from legroom.backends.keras.input import counted
from legroom.backends.keras.input.epochs import EpochsInData, replace_epochs, watched
from legroom.backends.parts import TORCH_EPOCHS
from legroom.backends.places import Position, Watch
from legroom.backends.torch.input.passage import Passage, leave
from legroom.backends.torch.state.arrays import as_array
from legroom.backends.torch.state.remembered import remembered

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
        self._place: dict[str, Any] | None = None
        self.in_turn = in_turn

    def __next__(self) -> Any:
        if self.watch is not None and self.watch.trains:
            watch, self.watch = self.watch, None
            watch.first_batch_taken(self)
        self._place = None
        return super().__next__()

    def peek(self) -> Any:
        """The next batch, which stays the next; None at the end."""
        if not self._ahead:
            self._place = self.place()
        return super().peek()

    def place(self) -> dict[str, Any]:
        """How to come to this place again: to before a batch that was looked at already."""
        return self._passage.place() if self._place is None else self._place

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
        """The bytes of one entry of a tensor; None for other leaves."""
        known = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        return int(leaf.element_size()) if known else None

    def _array(self, leaf: Any) -> Any:
        """A tensor's values."""
        return as_array(leaf)


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
        data = self._epochs.started_at(passed) if passed else None
        if data is None:
            data = self._epochs.new_loader()
        else:
            passed = 0
        begun = place is not None and "created" in place
        if place is not None and not begun:
            leave(data, place)
            place = None
        self.current = _Counted(Passage(data, place, passed), self._epochs.in_turn, self._begun)
        self.current.consumed = consumed
        self.current.begun = begun
        if self._watch.waits:
            self.current.watch = self._watch
        return self.current

    def _begun(self) -> None:
        self.created += 1


class Epochs(EpochsInData, keras_trainer.TorchEpochIterator):
    """Keras's epochs over a training's data, watched."""

    def __init__(self, watch: Watch, *args: Any, **kwargs: Any) -> None:
        self._watch = watch
        super().__init__(*args, **kwargs)
        self.source = _Source(self, watch)
        self._done_here = 0

    def _get_iterator(self) -> _Source:
        return self.source

    def new_loader(self) -> Any:
        """What Keras would ask for an iterator."""
        return super()._get_iterator()

    def started_at(self, batch: int) -> Any:
        """A stream of legroom's own that begins with a batch; None for other data."""
        if self.pipeline is None:
            return None
        begun = named("tensorflow").streams.started_at(self.pipeline, batch)
        return None if begun is None else data_adapter_utils.get_torch_dataloader(begun)

    @property
    def pipeline(self) -> Any:
        """The pipeline of tf.data that it goes through; None for other data."""
        if "tensorflow" in sys.modules and isinstance(self.data_adapter, TFDatasetAdapter):
            return self.data_adapter.get_tf_dataset()
        return None

    @property
    def in_turn(self) -> bool:
        """Whether a batch is made when it is taken, by who takes it, and none ahead of that."""
        return self.pipeline is None and getattr(self.data_adapter, "enqueuer", None) is None

    def checkpoint(self) -> dict[str, Any] | None:
        """How to come to this place in the data again."""
        if self.counted is None or (self._done_here == 0 and not self.goes_on()):
            return self.left()  # the next iterator is still to be asked for
        return self.counted.place()

    def left(self) -> dict[str, Any] | None:
        """What a loader of the user's own remembers when a training is over."""
        return {"remembered": remembered(self.new_loader())} if self._has_own_loader else None

    def pass_over(self, iterators: int, left: Any = None) -> None:
        """Leave the data as a training that has asked for so many iterators left it."""
        self.source.pass_over(iterators)
        super().pass_over(iterators)
        if left is not None and self._has_own_loader:
            leave(self.new_loader(), left)

    @property
    def _has_own_loader(self) -> bool:
        return type(self.data_adapter).__name__ == "TorchDataLoaderAdapter"

    def __iter__(self) -> Iterator[Any]:
        """An epoch, as Keras asks for it."""
        return self._watched(self._begin, self._take)

    def _begin(self) -> Iterator[Any]:
        self._epoch_iterator: Any = self._enumerate_iterator()
        return self._epoch_iterator

    def _take(self, epoch: Iterator[Any]) -> Any:
        return super().__next__()


def shuffles_again() -> bool:
    """Whether Keras shuffles a `PyDataset`'s batches once more: on PyTorch it does not."""
    return False


def patch_epochs() -> None:
    """Take our place where Keras makes the epochs over its data."""
    replace_epochs(__name__, TORCH_EPOCHS, "TorchEpochIterator", Epochs)
