"""What a framework's step must do for the guard: the protocols.

The guard knows a step by these only. How a framework computes it, what its allocator does and how
a need is found out are behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from legroom.core.traces import LayerCost

if TYPE_CHECKING:
    from legroom.backends.base import Device

__all__ = ["BackendStep", "Needs", "SliceRules"]


class Needs(Protocol):
    """The bytes that a step should need beyond what is in use before it, before it has run."""

    @property
    def source(self) -> str:
        """How they were found out."""
        ...

    @property
    def low(self) -> float:
        """With less than so many times what is told, the step clearly can't fit."""
        ...

    @property
    def high(self) -> float:
        """With so many times what is told, it surely fits."""
        ...

    @property
    def alike(self) -> bool:
        """Whether the step's needs grow from size to size as those that are told."""
        ...

    def __call__(self, samples: int) -> int:
        """With slices of this size; with the batch's size, whole."""
        ...


class SliceRules(Protocol):
    """Whether a step may be cut into slices, and what they would change."""

    @property
    def refusal(self) -> str | None:
        """Why it can't be sliced at all; None where it can."""
        ...

    @property
    def exact(self) -> bool:
        """Whether slices give what the whole batch gives."""
        ...

    @property
    def coupled(self) -> Sequence[str]:
        """Layers and losses that mix the samples of a batch."""
        ...

    @property
    def redrawn(self) -> Sequence[str]:
        """Layers that draw other numbers in slices than for the whole batch."""
        ...

    @property
    def calls(self) -> Sequence[str]:
        """By which functions of the framework the step calls Python: each slice does."""
        ...

    @property
    def summaries(self) -> bool:
        """Whether the step writes summaries, which show one slice then."""
        ...

    @property
    def unverified(self) -> str | None:
        """Why slices could not be compared with the whole batch; None where they were."""
        ...


class BackendStep(Protocol):
    """A step of a training, an evaluation or a prediction."""

    @property
    def pool(self) -> Device:
        """The memory that it runs in."""
        ...

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch; None where that can't be told."""
        ...

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run a batch in slices, or whole; out of memory means that nothing has happened."""
        ...

    def rules(self, data: Any) -> SliceRules:
        """Whether it may be sliced; found out on the first call."""
        ...

    def needs(self, data: Any, free: int | None) -> Needs | None:
        """What it should need on batches like this; None where nothing tells.

        Args:
            data: The batch.
            free: The bytes that are free. A quick source is asked first, and a better, slower one
                where that does not settle whether the whole batch fits; None asks the quick one.
        """
        ...

    def usable(self, *, planned: bool) -> float:
        """The share of what is free that a size above those that were seen may need.

        Args:
            planned: Whether a plan said where to begin: it is near the best already.
        """
        ...

    def tensors(self, samples: int) -> Sequence[tuple[str, int]]:
        """The largest tensors of a slice of this size, as `needs` saw it: layers and bytes."""
        ...

    def layer_costs(self, data: Any) -> tuple[Sequence[LayerCost], bool]:
        """What layers keep for their gradients, in order, and whether neighbours form blocks."""
        ...

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """Compute these blocks of layers again from now on, instead of keeping them."""
        ...

    def put_in_order(self, samples: int) -> None:
        """Run whole batches in the order that needs least memory for this many samples."""
        ...

    @property
    def lean_saves(self) -> int:
        """The bytes that going lean would save on whole batches, about; 0 where it can't."""
        ...

    @property
    def unborn_bytes(self) -> int:
        """State that the first update will create, which is not in use yet."""
        ...

    def go_lean(self, lean: bool = True) -> None:
        """Keep what a failed step needs in the host's memory from now on, or no longer."""
        ...

    def is_oom(self, error: BaseException) -> bool:
        """Whether an error means that memory ran out."""
        ...

    def describe(self, error: BaseException) -> tuple[str | None, int | None]:
        """Where it ran out, and how many bytes were asked for."""
        ...

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        ...

    @property
    def broken_by_oom(self) -> bool:
        """Whether nothing can be computed in this process any more once the step has run out."""
        ...

    def recover(self) -> None:
        """Free what a failed step left behind."""
        ...
