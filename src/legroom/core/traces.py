"""The ops of one step, as a backend traced them and as predictions read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

__all__ = ["StepTrace", "TracedOp"]


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

    def ops(self, samples: int) -> list[TracedOp]:
        """The ops in order, with the bytes they make on this many samples."""
        ...
