"""Batches out of windows of a source: one window is used while the next one is read."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from typing import Any

import numpy as np

from legroom.data.order import PassOrder
from legroom.data.source import Room, Source, empty

__all__ = ["WindowReader"]


@dataclasses.dataclass
class _Window:
    """Samples in memory, and the order in which they are handed out."""

    seed: int
    number: int
    start: int
    stop: int
    room: Room
    order: Any


class WindowReader:
    """Makes any batch of any pass; quickly, where they are asked for one after the other.

    Args:
        source: Where the samples are.
        batch_size: Samples in a batch.
        at_once: Chunks in a window.
        shuffle: Whether each pass has an order of its own.
    """

    def __init__(self, source: Source, batch_size: int, at_once: int, shuffle: bool) -> None:
        self._source = source
        self._batch_size = batch_size
        self._at_once = at_once
        self._shuffle = shuffle
        self._samples = int(source.sizes.sum())
        self._lock = threading.Lock()
        self._reading = concurrent.futures.ThreadPoolExecutor(1, "legroom-stream")
        self._ahead: tuple[concurrent.futures.Future[_Window], Room, int] | None = None
        self._current: _Window | None = None
        self._order: tuple[int, PassOrder] | None = None
        self._spare = [source.room(at_once) for _ in range(2)]

    def __call__(self, seed: int, number: int) -> list[Any]:
        """The leaves of a batch.

        Args:
            seed: Tells the pass from others.
            number: The batch's, from 0.
        """
        with self._lock:
            order = self._order_of(int(seed))
            place = int(number) * self._batch_size
            end = min(place + self._batch_size, self._samples)
            parts = []
            while place < end:
                window = self._window(order, order.window_at(place))
                stop = min(end, window.stop)
                rows = window.order[place - window.start : stop - window.start]
                parts.append(window.room.take(rows))
                place = stop
        if len(parts) == 1:
            return parts[0]
        return [_joined(pieces) for pieces in zip(*parts, strict=True)]

    def _order_of(self, seed: int) -> PassOrder:
        if self._order is None or self._order[0] != seed:
            drawn = PassOrder(self._source.sizes, self._at_once, seed if self._shuffle else None)
            self._order = seed, drawn
        return self._order[1]

    def _window(self, order: PassOrder, number: int) -> _Window:
        assert self._order is not None
        seed, current = self._order[0], self._current
        if current is not None and (current.seed, current.number) == (seed, number):
            return current
        self._current = None
        if current is not None:
            self._spare.append(current.room)
        window = self._arrived(seed, number)
        if window is None:
            self._begin(order, seed, number)
            window = self._arrived(seed, number)
            assert window is not None
        self._current = window
        if number + 1 < order.windows:
            self._begin(order, seed, number + 1)
        return window

    def _begin(self, order: PassOrder, seed: int, number: int) -> None:
        """Begin to read a window. Always in the same thread: each has memory of its own."""
        room = self._spare.pop()
        self._ahead = self._reading.submit(self._read, order, seed, number, room), room, number

    def _arrived(self, seed: int, number: int) -> _Window | None:
        """The window that is being read, if it is the one that is needed."""
        if self._ahead is None:
            return None
        (reading, room, begun), self._ahead = self._ahead, None
        try:
            window = reading.result()
        except BaseException:
            self._spare.append(room)
            if begun == number:
                raise
            return None
        if (window.seed, window.number) == (seed, number):
            return window
        self._spare.append(room)
        return None

    def _read(self, order: PassOrder, seed: int, number: int, room: Room) -> _Window:
        self._source.read(order.chunks(number), room)
        start, stop = (int(place) for place in order.starts[number : number + 2])
        return _Window(seed, number, start, stop, room, order.samples(number))


def _joined(pieces: tuple[Any, ...]) -> Any:
    if pieces[0].dtype.hasobject:
        return np.concatenate(pieces)
    rows = sum(map(len, pieces))
    return np.concatenate(pieces, out=empty((rows, *pieces[0].shape[1:]), pieces[0].dtype))
