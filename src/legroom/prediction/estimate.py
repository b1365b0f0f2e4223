"""Estimate: what a training step will need, before anything has run."""

from __future__ import annotations

import dataclasses
from typing import Any

from legroom.core.records import Record

__all__ = ["Estimate"]


@dataclasses.dataclass(frozen=True)
class Estimate(Record):
    """The device memory that a model's step will need.

    Attributes:
        model: The model's name.
        method: "fit", "evaluate" or "predict".
        batch_size: The batch size it is for.
        peak_bytes: The peak of the steady steps: weights, optimizer and all.
        low_bytes: The peak is not expected to lie below this.
        high_bytes: Nor above this: a cap to set by.
        first_step_bytes: The peak of the first step.
        source: How it was made: "compiled", "probed" or "traced".
        breakdown: What holds the memory at the peak: weights, gradients, optimizer, activations,
            workspace, input, other (what the allocator rounds up, metrics, constants).
        layers: Bytes by layer at the peak, the largest first.
        timeline: The bytes in use during one step: op and bytes, in order.
        parts: The same bytes by what they are for, in the order of the breakdown.
        seconds: How long the estimate took.
        notes: What a reader should know, as why a better source could not be used.
    """

    model: str
    method: str
    batch_size: int
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    first_step_bytes: int
    source: str
    breakdown: dict[str, int]
    layers: tuple[tuple[str, int], ...] = ()
    timeline: tuple[tuple[str, int], ...] = dataclasses.field(default=(), repr=False)
    parts: tuple[tuple[int, ...], ...] = dataclasses.field(default=(), repr=False)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def fits(self, budget_bytes: int) -> bool:
        """Whether it should fit into a budget, error bar and all."""
        return max(self.high_bytes, self.first_step_bytes) <= budget_bytes

    def plot(self, budget_bytes: int | None = None) -> Any:
        """The memory of the step as a figure of matplotlib's; ``.savefig("step.pdf")`` keeps it.

        Args:
            budget_bytes: A limit to draw beside it.

        Raises:
            LegroomError: If matplotlib is not installed.
        """
        from legroom.prediction.plot import plot_estimate

        return plot_estimate(self, budget_bytes)
