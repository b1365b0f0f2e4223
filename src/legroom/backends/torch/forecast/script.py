"""A step's allocations in order, for any batch size. Pure.

They are recorded once, at a batch size that is a large prime: what its bytes can be divided by
grows with the batch, and what they can't stays as it is. Divided twice, it grows with the square.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["RECORDED_SIZE", "Piece", "Script"]

# No power of two and not next to one: pictures and layers have such sizes, less a border.
RECORDED_SIZE = 1009


@dataclasses.dataclass
class Piece:
    """One allocation.

    Attributes:
        nbytes: Its bytes as recorded.
        op: What took it.
        layer: The layer that this was for; empty where that is not known.
        kind: What it is for: a name of the breakdown.
    """

    nbytes: int
    op: str
    layer: str
    kind: str

    def bytes_at(self, samples: int) -> int:
        """Its bytes at a batch size."""
        rest, power = self.nbytes, 0
        while rest and rest % RECORDED_SIZE == 0:
            rest //= RECORDED_SIZE
            power += 1
        return int(rest * samples**power)


@dataclasses.dataclass(frozen=True)
class Script:
    """What is allocated and freed before a step, and in it.

    An event is the place of a piece that is allocated; inverted (`~place`), that it is freed.

    Attributes:
        pieces: All allocations.
        before: The events before the step.
        step: The events of the step.
        leftover: The pieces that the step before has left, which the first one does not find.
        rehearsed: Whether what comes before is the training's first step.
        guessed: Whether the step looked at values, which nobody knows, to choose its way.
    """

    pieces: Sequence[Piece]
    before: Sequence[int]
    step: Sequence[int]
    leftover: frozenset[int] = frozenset()
    rehearsed: bool = False
    guessed: bool = False

    def as_first(self) -> Script:
        """The training's first step."""
        if not self.leftover:
            return self
        before, step = (
            [event for event in events if max(event, ~event) not in self.leftover]
            for events in (self.before, self.step)
        )
        return dataclasses.replace(self, before=before, step=step, leftover=frozenset())

    def sizes(self, samples: int) -> list[int]:
        """The bytes of all pieces at a batch size."""
        return [piece.bytes_at(samples) for piece in self.pieces]

    def held_bytes(self, kind: str) -> int:
        """The bytes of a kind that are there before the first step."""
        return sum(
            self.pieces[event].bytes_at(1)
            for event in self.before
            if event >= 0 and self.pieces[event].kind == kind
        )
