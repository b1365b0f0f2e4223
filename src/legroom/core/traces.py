"""The ops of one step, as a backend traced them and as predictions read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

__all__ = ["LayerCost", "StepTrace", "TracedOp"]


@dataclasses.dataclass(frozen=True)
class TracedOp:
    """One op of a traced step.

    Attributes:
        name: Its path in the graph.
        outputs: The names and bytes of the tensors it makes.
        inputs: The names of the tensors it reads.
        passes_on: Whether its output is its first input's memory (a reshape).
        may_reuse: Whether it writes into its first input's memory where nobody else reads that.
        scratch: Bytes that it takes while it runs.
    """

    name: str
    outputs: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    passes_on: bool = False
    may_reuse: bool = False
    scratch: int = 0


class StepTrace(Protocol):
    """A traced step, as a function of the number of samples it runs on."""

    @property
    def kept(self) -> Sequence[str]:
        """The tensors that outlive the step: what it hands on."""
        ...

    @property
    def loops(self) -> bool:
        """Whether it has loops: what is inside is not among its ops."""
        ...

    def ops(self, samples: int) -> list[TracedOp]:
        """The ops in order, with the bytes they make on this many samples."""
        ...


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """What one layer, in the order in which they run, costs to keep and to run again.

    Attributes:
        name: The layer's name.
        kept_bytes: What is kept of it for its gradient.
        incoming_bytes: What comes in to it and to all after it from those before: what a block
            that begins here has to keep.
        work: The time to run it again, in any unit.
        read_bytes: The part of what comes in that gradients read: it is among what layers before
            keep, and where those are recomputed it is kept all the same for this one.
    """

    name: str
    kept_bytes: int
    incoming_bytes: int
    work: float
    read_bytes: int = 0
