"""What a framework must do with the data of a training: the protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from legroom.backends.places import Watch
from legroom.core.stages import Stage

__all__ = ["Batches", "Fits", "Input", "Passages", "Shuffles", "Streams", "WatchedEpochs"]


class Input(Protocol):
    """What `fit` is given as data."""

    def is_dataset(self, value: Any) -> bool:
        """Whether it is a pipeline of the framework's."""
        ...

    def is_sequence(self, value: Any) -> bool:
        """Whether it is a `PyDataset`."""
        ...

    def read_pipeline(self, dataset: Any) -> list[Stage]:
        """The stages of a pipeline, beginning with its source."""
        ...

    def read_sequence(self, data: Any) -> list[Stage]:
        """The stages of a `PyDataset`."""
        ...


class Fits(Protocol):
    """What trainings are given: what `fit` is called with, and what loops go through."""

    def follow_fits(self, on_fit: Callable[[Any, Any, dict[str, Any], str], list[Any]]) -> None:
        """Have a function called whenever a model is trained by `fit`.

        It gets the model, the data, the other arguments and the line; it returns who is told of
        the epochs.
        """
        ...

    def follow_iterations(self, on_iteration: Callable[[Any, str], None]) -> None:
        """Have a function called whenever the user's own code begins to go through a data set.

        It gets the data set and the line.
        """
        ...

    def fitted_data(
        self, x: Any, y: Any = None, sample_weight: Any = None, size: int | None = None
    ) -> tuple[int | None, Any]:
        """The size of a batch, None where it can't be told; and one, or what shows its shapes."""
        ...


class WatchedEpochs(Protocol):
    """The way of a training through its data."""

    def shuffles_again(self) -> bool:
        """Whether Keras shuffles a `PyDataset`'s batches once more."""
        ...

    def watched(self, watch: Watch) -> AbstractContextManager[None]:
        """Have the data of the `fit` in this context watched."""
        ...


class Batches(Protocol):
    """The batches of one pass over data."""

    def __iter__(self) -> Iterator[Any]: ...

    def place(self) -> dict[str, Any] | None:
        """How another process comes to this place; None where it passes over what came before."""
        ...

    def left(self) -> dict[str, Any] | None:
        """What the data itself remembers when the pass is over."""
        ...


class Passages(Protocol):
    """Loops over data that can be begun in the middle. Importing it must not import Keras."""

    def begin(self, data: Any, place: dict[str, Any] | None, passed: int) -> Batches:
        """Begin a pass.

        Args:
            data: Anything that can be iterated over.
            place: What another process told of its place, if this one is to begin there.
            passed: How many batches it had taken.
        """
        ...

    def leave(self, data: Any, left: dict[str, Any]) -> None:
        """Have data remember what it did when a pass was over."""
        ...


class Shuffles(Protocol):
    """Orders that nobody seeded. Importing it must not import Keras."""

    def seed_shuffles(self, seed: int) -> None:
        """Give shuffles without a seed one, in the order in which they are made."""
        ...


class Streams(Protocol):
    """Data that is read while it is trained on, by legroom's own order."""

    def batches(
        self,
        read: Callable[[int, int], list[Any]],
        leaves: Sequence[Any],
        structure: Any,
        samples: int,
        batch_size: int,
        seed: int,
        turn: int,
    ) -> Any:
        """Batches as a data set that can begin a pass in its middle."""
        ...

    def image_batches(
        self,
        read: Callable[[int, int], list[Any]],
        structure: Any,
        samples: int,
        batch_size: int,
        seed: int,
        size: tuple[int, int],
        resized: bool,
        class_names: list[str],
        ram_bytes: int,
    ) -> Any:
        """Batches of images that are read from their files."""
        ...

    def image_size_of(self, path: str) -> tuple[int, int]:
        """The height and width of an image."""
        ...

    def started_at(self, dataset: Any, batch: int) -> Iterator[Any] | None:
        """A stream from a batch on; None where the data set is none."""
        ...
