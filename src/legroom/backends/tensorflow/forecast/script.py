"""A training's beginnings as a script for the allocator: what is taken and given back, in order.

A script comes from a probe's recording or from a walk over the traced graph. Its sizes are
functions of the batch's: the order of a step does not depend on it, what its tensors take does.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeAlias

__all__ = ["Allocation", "Entry", "Move", "Script", "counterparts"]

# Added to the numbers of allocations for each repetition of a step.
_TURN = 10**9


@dataclasses.dataclass(frozen=True)
class Allocation:
    """One allocation and how it grows with the batch.

    Attributes:
        number: What its release calls it.
        op: The op that asked for it; empty for TensorFlow's own.
        region: "output", "temp", or empty.
        requested: Its bytes at the size that was recorded.
        axes: Its shape as pairs of a fixed length and one that is added for each sample.
        itemsize: The bytes of one entry; 0 where `axes` do not tell, and `slope` does.
        slope: Bytes for each sample, where the shape is not known.
        since: The batch size from which on it is taken at all.
    """

    number: int
    op: str
    region: str
    requested: int
    axes: tuple[tuple[float, float], ...] = ()
    itemsize: float = 0.0
    slope: float = 0.0
    since: int = 0

    def bytes_at(self, samples: int, recorded: int) -> int:
        """The bytes at a batch size."""
        if samples < self.since:
            return 0
        if self.itemsize:
            count = 1.0
            for fixed, each in self.axes:
                count *= fixed + each * samples
            return max(0, round(count * self.itemsize))
        return max(0, round(self.requested + self.slope * (samples - recorded)))


# Either an allocation, or the number of one that is given back.
Entry: TypeAlias = Allocation | int
# The number of an allocation with its bytes; -1 where it is given back.
Move: TypeAlias = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Script:
    """The phases of a training's beginnings.

    Attributes:
        build: The model's variables.
        input: One batch.
        state: What the first step brings along: the optimizer's slots, metrics.
        steps: The first steps, one after the other; later ones repeat the last.
        recorded: The batch size at which `Allocation.requested` holds.
        unmatched: The share of the bytes of which it is not known how they grow.
    """

    build: Sequence[Entry]
    input: Sequence[Entry]
    state: Sequence[Entry]
    steps: Sequence[Sequence[Entry]]
    recorded: int
    unmatched: float = 0.0

    def phases(self, samples: int, steps: int) -> Iterator[tuple[str, list[Move], Sequence[Entry]]]:
        """The phases of a training on batches of a size.

        Args:
            samples: The batch size.
            steps: How many steps.

        Yields:
            A phase's name; its moves; and the entries that they come from, one for each move.
        """
        for name, entries in (("build", self.build), ("input", self.input), ("state", self.state)):
            yield name, self._moves(entries, samples), entries
        moves: list[Move] = []
        for number, entries in enumerate(self.steps[:steps], 1):
            moves = self._moves(entries, samples)
            yield f"step {number}", moves, entries
        last = self.steps[-1]
        own = {entry.number for entry in last if isinstance(entry, Allocation)}
        successors = counterparts(self.steps[-2], last) if len(self.steps) > 1 else {}
        for turn in range(1, steps - len(self.steps) + 1):
            yield f"step {turn + len(self.steps)}", _again(moves, own, successors, turn), last

    def _moves(self, entries: Sequence[Entry], samples: int) -> list[Move]:
        return [
            (entry, -1)
            if isinstance(entry, int)
            else (entry.number, entry.bytes_at(samples, self.recorded))
            for entry in entries
        ]


def _again(
    moves: Sequence[Move], own: Container[int], successors: Mapping[int, int], turn: int
) -> list[Move]:
    """The last step once more: what it takes is numbered anew for each turn.

    What it gave back of the step before (a variable's old memory, whose new one that step made)
    is its own of the turn before.
    """
    offset, before = turn * _TURN, (turn - 1) * _TURN
    return [
        (number + offset, size)
        if number in own
        else (successors[number] + before if number in successors else number, size)
        for number, size in moves
    ]


def counterparts(one: Sequence[Entry], other: Sequence[Entry]) -> dict[int, int]:
    """Which allocation of another step is the same one, by the op and how many it made before."""

    def numbered(entries: Sequence[Entry]) -> dict[tuple[str, str, int], int]:
        ordinals: Counter[tuple[str, str]] = Counter()
        found: dict[tuple[str, str, int], int] = {}
        for entry in entries:
            if isinstance(entry, Allocation):
                key = (entry.op, entry.region)
                found[entry.op, entry.region, ordinals[key]] = entry.number
                ordinals[key] += 1
        return found

    later = numbered(other)
    return {number: later[key] for key, number in numbered(one).items() if key in later}
