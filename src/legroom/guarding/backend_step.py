"""What the guard needs of a backend's step: the seam between the guard and a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from legroom.core.graphs import Orderer, StepWalk
from legroom.core.traces import LayerCost, StepTrace

__all__ = ["BackendStep"]


class BackendStep(Protocol):
    """A step of a training, an evaluation or a prediction."""

    @property
    def pool(self) -> Any:
        """The device's memory: its limit, what is in use, the peak."""
        ...

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch."""
        ...

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run a batch in slices, or whole; out of memory means that nothing has happened."""
        ...

    def rules(self, data: Any) -> Any:
        """How the slices are put together, what they would change, why they can't be."""
        ...

    def traces(self, data: Any) -> Sequence[StepTrace]:
        """What a step on this batch runs."""
        ...

    def walk(self, data: Any) -> StepWalk | None:
        """What computes the gradients, as the framework's executor runs it, where that is known."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether a compiler makes one program of the step's ops."""
        ...

    @property
    def broken_by_oom(self) -> bool:
        """Whether nothing can be computed in this process any more once the step has run out."""
        ...

    def layer_costs(self, data: Any) -> tuple[Sequence[LayerCost], bool]:
        """What layers keep for their gradients, in order, and whether neighbours form blocks."""
        ...

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """Compute these blocks of layers again from now on, instead of keeping them."""
        ...

    def put_in_order(self, order: Orderer) -> None:
        """Have the ops of whole batches wait for each other from now on."""
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

    def layer(self, op: str) -> str:
        """The layer that an op belongs to."""
        ...

    def recover(self) -> None:
        """Free what a failed step left behind."""
        ...
