"""A step's graph as predictions run it: nodes, what each does with memory, and how much.

A backend makes it of its own graph; sizes are functions of the batch size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "NO_SCRATCH", "TIMED_AT", "Axes", "Graph", "Node", "Orderer", "Scratch", "Size", "StepWalk",
    "bytes_at",
]  # fmt: skip

# The batch size at which ops are timed. Only the order of times counts, which is much the same at
# all sizes.
TIMED_AT = 16

# A tensor's axes: of each a fixed length, and one that is added for each sample.
Axes = tuple[tuple[float, float], ...]
# A tensor's axes and the bytes of an entry.
Size = tuple[Axes, float]


def bytes_at(size: Size, samples: int) -> float:
    """What a tensor takes on so many samples."""
    axes, itemsize = size
    return math.prod(fixed + each * samples for fixed, each in axes) * itemsize


class Scratch(NamedTuple):
    """What an op takes while it runs.

    Attributes:
        fixed: Bytes at every batch size.
        each: Bytes for each sample.
        since: The batch size from which on it takes them; below it takes nothing.
    """

    fixed: float = 0.0
    each: float = 0.0
    since: int = 0


NO_SCRATCH = Scratch()


@dataclasses.dataclass
class Node:
    """One op.

    Attributes:
        name: Its name.
        effect: What it does with memory: "new", "alias", "reuse" (its last output may take an
            input's), "none"; "read", "update", "assign" and "scatter" for variables; "push", "set",
            "replace", "merge", "pop", "get", "unstack" and "zeros" for lists of tensors; "call" and
            "loop" for ops that run a graph.
        inputs: Where its inputs come from: node and port.
        controls: Nodes that have to run before it.
        outputs: The sizes of its outputs; None for what takes no memory.
        cheap: Whether the executor runs it at once.
        fused: Whether it may become one op with its neighbours, unless it waits for someone else.
        scratch: What it takes while it runs.
        over: The only input that it may write over; None for any.
        copies: An input that it works on, in a copy unless nobody else needs it.
        work: How long it takes beside reading and writing, in the time that a byte takes.
        body: The graph that it runs.
        turns: How often a loop runs it, or how many items a list has.
        ahead: Of a loop, how many turns may be under way at a time. Of an op in one, whether it
            waits for nothing that the turn before makes, and so runs that many turns ahead. What
            it makes then is a list, which is given to the loop behind its arguments.
    """

    name: str
    effect: str
    inputs: list[tuple[int, int]]
    controls: list[int]
    outputs: list[Size | None]
    cheap: bool = False
    scratch: Scratch = NO_SCRATCH
    copies: int | None = None
    work: float = 0.0
    body: Graph | None = None
    turns: int = 1
    ahead: int = 0
    fused: bool = False
    over: int | None = None


@dataclasses.dataclass
class Graph:
    """Nodes in the order of their making.

    Attributes:
        nodes: The nodes.
        arguments: Those that are given.
        results: The outputs that are returned.
        late: Arguments that come when all else that can run has run: a batch, which is fetched.
    """

    nodes: list[Node]
    arguments: list[int]
    results: list[tuple[int, int]]
    late: frozenset[int] = frozenset()


# Says who is to wait for whom in a graph, as pairs of a node and one that comes after it.
Orderer: TypeAlias = Callable[[Graph], Sequence[tuple[int, int]]]


@dataclasses.dataclass(frozen=True)
class StepWalk:
    """A step on slices of its batch, to be run by the executor's model.

    Attributes:
        graph: Its graph, which adds the gradients up.
        held: What is held between steps, as `write_script` takes it; the sums have the role
            "gradients".
        inputs: The sizes of the parts of a batch.
        threads: How many threads run it.
    """

    graph: Graph
    held: Sequence[Any]
    inputs: Sequence[Size]
    threads: int
