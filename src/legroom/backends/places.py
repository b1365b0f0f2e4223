"""Where a training is in its data: what a backend and who keeps the training tell each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Batches", "Epochs", "Position", "Watch"]


@dataclasses.dataclass
class Position:
    """Where in its data a training is, between two batches.

    Attributes:
        step: Batches of this epoch that are done.
        iterators: Iterators that were asked for so far.
        consumed: Batches that were taken from the last one of them.
        steps_seen: Keras's own count, which may run on over several epochs.
        num_batches: The length of an epoch, where Keras knows it by now.
        checkpoint: The framework's own, where there is one.
    """

    step: int
    iterators: int
    consumed: int
    steps_seen: int
    num_batches: int | None
    checkpoint: dict[str, Any] | None = None


class Batches(Protocol):
    """An iterator over batches that can look one batch ahead."""

    @property
    def in_turn(self) -> bool:
        """Whether a batch is made when it is taken, by who takes it, and none ahead of that."""
        ...

    @property
    def begun(self) -> bool:
        """Whether it was there before the place to begin at, and is not still to be asked for."""
        ...

    @property
    def consumed(self) -> int:
        """Batches that were taken."""
        ...

    def reach(self) -> None:
        """Pass over what comes before the place to begin at."""
        ...

    def peek(self) -> Any:
        """The next batch, which stays the next; None at the end."""
        ...

    def digest(self) -> int | None:
        """A number that tells the next batch from others; None where there is none."""
        ...


class Epochs(Protocol):
    """The epochs of one `fit`."""

    @property
    def counted(self) -> Batches | None:
        """The iterator that batches are taken from."""
        ...

    @property
    def iterators(self) -> int:
        """Iterators that were asked for so far."""
        ...

    def position(self) -> Position:
        """Where the training is now."""
        ...

    def checkpoint(self) -> dict[str, Any] | None:
        """The framework's own checkpoint of the place, where it is small and worth it."""
        ...

    def over(self) -> bool:
        """Whether the epoch has no further batch, as far as that is known without an end."""
        ...

    def goes_on(self) -> bool:
        """Whether the iterator of the last epoch is used in this one too."""
        ...

    def left(self) -> dict[str, Any] | None:
        """What the data itself remembers when a training is over."""
        ...

    def pass_over(self, iterators: int, left: Any = None) -> None:
        """Leave the data as a training that has asked for so many iterators left it.

        Args:
            iterators: How many it has asked for.
            left: What the data remembered then.
        """
        ...


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

    @property
    def trains(self) -> bool:
        """Whether the training has begun, and Keras does not only look at the data."""
        ...

    def first_batch(self, step: Any, run: Callable[[Any], Any], batches: Batches) -> None:
        """Before the first batch is taken, by a function that takes its batches itself.

        Args:
            step: The step, which may be traced.
            run: Runs the step on a batch.
            batches: What it takes its batches from.
        """
        ...

    def first_batch_taken(self, batches: Batches) -> None:
        """Before the first batch is taken, by Keras, who hands it to a function that runs it."""
        ...
