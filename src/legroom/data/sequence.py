"""A `PyDataset` that can begin an epoch in its middle.

It stands in for the user's own during `fit`. Batches are asked for by their number, so the place
is found at once, without making the batches before it. What makes an epoch the one it is has to be
remembered: the order that Keras shuffles its batches into, what the data set itself keeps, and
where the global random numbers were after each batch: batches are made ahead of the training, and
may draw from them.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

__all__ = ["Place", "SeekingDataset"]

_REMEMBERED = 600  # batches; tf.data looks ahead by 512 at most


@dataclasses.dataclass
class Place:
    """Where to begin an epoch.

    Attributes:
        batch: The number of batches that are done.
        order: The order of the batches in this epoch; None for that of their numbers.
        restore: Puts back what the data set itself remembers; called once it has begun the epoch.
    """

    batch: int
    order: list[int] | None
    restore: Callable[[], None]


class SeekingDataset(keras.utils.PyDataset):
    """Stands in for a finite `PyDataset`.

    Args:
        inner: The user's own.
        shuffle: Whether its batches are shuffled, as `fit` was told.
        began: Called when an epoch has begun from its start.
    """

    def __init__(self, inner: Any, shuffle: bool, began: Callable[[], None]) -> None:
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner = inner
        self.order: list[int] | None = None
        self._shuffle = bool(shuffle)
        self._began = began
        self._place: Place | None = None
        self._first = 0
        self._draws = False
        self._states: collections.OrderedDict[int, Any] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: what they need to make batches."""
        return {**vars(self), "_began": None, "_place": None, "_states": collections.OrderedDict()}

    @property
    def num_batches(self) -> int:
        """Batches from where the epoch begins to its end."""
        return int(self.inner.num_batches) - self._first

    @property
    def _has_workers(self) -> bool:
        """Whether Keras makes batches in workers. Those begin before the epoch itself does."""
        return bool(self.workers > 1 or (self.workers > 0 and self.use_multiprocessing))

    def seek(self, place: Place) -> None:
        """Have the next epoch begin elsewhere."""
        self._place = place
        if self._has_workers:
            self.order, self._first = place.order, place.batch
            place.restore()

    def ready(self) -> None:
        """An epoch is about to begin at its start."""
        self._first = 0
        if self._has_workers:
            self._draw_order()

    @property
    def drawn_ahead(self) -> list[int] | None:
        """The order of an epoch that is about to begin, where it is drawn before."""
        return self.order if self._has_workers else None

    def _draw_order(self) -> None:
        if self._shuffle:
            self.order = list(range(int(self.inner.num_batches)))
            random.shuffle(self.order)  # what Keras would do, with the same random numbers

    def on_epoch_begin(self) -> None:
        """Draw the order of this epoch, or take up the one that was."""
        self.inner.on_epoch_begin()
        self._states.clear()
        place, self._place = self._place, None
        if place is not None:
            self.order, self._first = place.order, place.batch
            place.restore()
            return
        self._first = 0
        if not self._has_workers:
            self._draw_order()
        self._began()

    def on_epoch_end(self) -> None:
        """Pass it on."""
        self._first = 0
        self.inner.on_epoch_end()

    def __getitem__(self, index: int) -> Any:
        place = self._first + index
        number = place if self.order is None else self.order[place]
        if self._has_workers:
            return self.inner[number]  # nobody knows in which order they are made
        before = _random_states()
        batch = self.inner[number]
        after = _random_states()
        if self._draws or not _equal(before, after):
            self._draws = True
            self._states[place + 1] = after
            while len(self._states) > _REMEMBERED:
                self._states.popitem(last=False)
        return batch

    def random_states_after(self, batches: int) -> Any:
        """Where Python's and NumPy's random numbers were after so many batches of this epoch.

        Returns:
            None where batches do not draw from them.
        """
        return self._states.get(batches)


def _random_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return (
        one[0] == other[0]
        and one[1][2:] == other[1][2:]
        and bool(np.array_equal(one[1][1], other[1][1]))
    )
