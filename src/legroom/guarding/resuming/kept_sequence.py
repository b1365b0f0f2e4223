"""The place of a `PyDataset` in a training that is kept: its order, and all it remembers."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

from legroom.backends.places import Position
from legroom.data.sequence import Place, SeekingDataset
from legroom.snapshots import attributes
from legroom.snapshots.values import decode, encode, moved

__all__ = ["KeptSequence"]

_LARGEST_ATTRIBUTE = 2**26  # an order is kept, the data itself is not


class KeptSequence:
    """A `PyDataset` that can begin in the middle, as it was.

    Attributes:
        stand_in: What Keras is given in its place.

    Args:
        dataset: The user's own.
        shuffle: Whether its batches come in an order that is drawn for each epoch.
        lean: Read little ahead.
    """

    def __init__(self, dataset: Any, shuffle: bool, *, lean: bool) -> None:
        self.stand_in = SeekingDataset(dataset, shuffle, self._remember)
        if lean:
            self.stand_in.max_queue_size = min(2, self.stand_in.max_queue_size)
        self._began: tuple[Any, list[Any]] = ({}, [])

    @classmethod
    def instead_of(
        cls, arguments: dict[str, Any], shuffled_again: bool, *, lean: bool
    ) -> KeptSequence | None:
        """Put one into the place of the user's own among `fit`'s arguments; None where it stays.

        Args:
            arguments: What `fit` is called with.
            shuffled_again: Whether Keras would shuffle its batches once more.
            lean: Read little ahead.
        """
        x = arguments.get("x")
        if not isinstance(x, keras.utils.PyDataset) or arguments.get("steps_per_epoch"):
            return None
        if getattr(x, "num_batches", None) is None:
            return None  # without an end: counted like any other stream
        if arguments.get("shuffle") and shuffled_again:
            return None  # in an order that is not the stand-in's alone
        made = cls(x, bool(arguments.get("shuffle")), lean=lean)
        arguments["x"] = made.stand_in
        arguments["shuffle"] = False
        return made

    def collect(
        self, position: Position | None, arrays: list[Any], *, in_turn: bool = False
    ) -> dict[str, Any]:
        """What is needed to come to this place again.

        Args:
            position: The place; None between epochs.
            arrays: Arrays are put here.
            in_turn: Whether no batch was made that was not taken yet.
        """
        if position is None:
            order = self.stand_in.drawn_ahead
            remembered = self._capture(arrays)
        elif in_turn:
            order, remembered = self.stand_in.order, self._capture(arrays)
        else:
            # Its epoch began with what it remembered then; the batches since have drawn from that.
            order = self.stand_in.order
            taken, own = self._began
            remembered = moved(taken, len(arrays))
            arrays.extend(own)
        kept_order = None if order is None else encode(np.array(order, np.int64), arrays)
        return {"order": kept_order, "attributes": remembered}

    def randomness_at(self, position: Position, arrays: list[Any]) -> dict[str, Any] | None:
        """Python's and NumPy's random state after the batches so far, where it was noted."""
        after = self.stand_in.random_states_after(position.consumed)
        if after is None:
            return None
        return {"python": encode(after[0], arrays), "numpy": encode(after[1], arrays)}

    def seek(self, position: Position, kept: dict[str, Any], arrays: list[Any]) -> None:
        """Begin the next epoch at a place that was kept."""
        restore = functools.partial(self.put_back, kept, arrays)
        order = None if kept["order"] is None else decode(kept["order"], arrays).tolist()
        if position.step == 0:
            restore()  # the epoch is still to begin
            if order is not None:
                self.stand_in.order = order
            return

        def begun() -> None:
            restore()
            self._remember()

        self.stand_in.seek(Place(position.consumed, order, begun))

    def put_back(self, kept: dict[str, Any], arrays: list[Any]) -> None:
        """Have the user's data set remember what it did."""
        attributes.restore(self.stand_in.inner, kept["attributes"], arrays)

    def _remember(self) -> None:
        """It has begun an epoch: what it remembers now is what makes the epoch."""
        arrays: list[Any] = []
        self._began = (self._capture(arrays), arrays)

    def _capture(self, arrays: list[Any]) -> Any:
        return attributes.capture(self.stand_in.inner, arrays, largest=_LARGEST_ATTRIBUTE)
