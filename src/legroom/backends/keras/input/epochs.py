"""Where a training is in its data: counted while it runs, and found again by another process.

Keras asks its data for an iterator once an epoch, or once for all of them, and takes batches from
it. Both are counted here, whatever framework Keras runs on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from legroom.backends import patches
from legroom.backends.places import Position, Watch

__all__ = ["EpochsInData", "replace_epochs", "watched"]


class EpochsInData:
    """What a class below Keras's own epoch iterator needs to be watched.

    Of Keras's class only what every supported version has is used.

    Attributes:
        source: What Keras asks for iterators; it knows how many it was asked for (`created`) and
            the last one (`current`), and is told where to begin (`resume`, `advance`).
    """

    source: Any
    data_adapter: Any
    steps_per_epoch: int | None
    steps_per_execution: int
    _num_batches: int | None
    _steps_seen: int
    _current_iterator: Any
    _done_here: int
    _watch: Watch

    @property
    def counted(self) -> Any:
        """The iterator that batches are taken from."""
        return self.source.current

    @property
    def iterators(self) -> int:
        """Iterators that were asked for so far."""
        return int(self.source.created)

    def let_go(self) -> None:
        """The training is over: its iterator ends now, with its threads, as Keras's own does.

        Left to the garbage collection it may end with the process, and then it hangs: a thread that
        waits for Python's data waits for ever.
        """
        self.source.current = self._current_iterator = None

    def pass_over(self, iterators: int, left: Any = None) -> None:
        """Leave the data as a training that has asked for so many iterators left it."""
        while self.source.created < iterators:
            iter(self.source)
        enqueuer = getattr(self.data_adapter, "enqueuer", None)
        if enqueuer is not None:
            enqueuer.stop()

    def left(self) -> dict[str, Any] | None:
        """What the data itself remembers when a training is over."""
        return None

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

    def over(self) -> bool:
        """Whether the epoch has no further batch, as far as that is known without an end."""
        total = self.steps_per_epoch or self._num_batches
        if total:
            left = total - self._done_here
            return left <= 0 or (left < self.steps_per_execution and self._forgets_a_cut_end())
        return self._done_here > 0 and self.counted is not None and self.counted.peek() is None

    def _forgets_a_cut_end(self) -> bool:
        """Whether Keras has nothing to tell of steps that the end of the data cuts short."""
        return False

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

    def _watched(
        self, begin: Callable[[], Iterator[Any]], take: Callable[[Iterator[Any]], Any] = next
    ) -> Iterator[Any]:
        """Keras's own epoch, with a word between any two of its executions.

        Args:
            begin: Begins an epoch, in which nothing is taken from the data yet.
            take: Takes an execution of it.
        """
        self._done_here = 0
        position = self._watch.begin(self)
        epoch = begin()
        steps_before = 0 if position is None else self._pass_over(epoch, position)
        while True:
            self._watch.boundary(self)
            try:
                execution = take(epoch)
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

    def checkpoint(self) -> dict[str, Any] | None:
        """The framework's own checkpoint of the place, where it is small and worth it."""
        raise NotImplementedError


class _Watching(threading.local):
    watch: Watch | None = None
    epochs: EpochsInData | None = None


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


def replace_epochs(
    group: Hashable, owner: str, name: str, epochs: Callable[..., EpochsInData]
) -> None:
    """Take our place where Keras makes the epochs over its data.

    Args:
        group: What the replacement belongs to.
        owner: The module of Keras's trainer.
        name: The name of its epoch iterator.
        epochs: Makes ours, which is given who watches before Keras's own arguments.
    """

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            watch, _watching.watch = _watching.watch, None  # the first one of a `fit` is its data
            if watch is None:
                return original(*args, **kwargs)
            _watching.epochs = epochs(watch, *args, **kwargs)
            return _watching.epochs

        return make

    if not patches.has(group):
        patches.put(group, owner, name, made)
