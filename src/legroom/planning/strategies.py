"""Plan: how a step will be run, and the alternatives."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from legroom.core.records import Record
from legroom.prediction.estimate import Estimate

__all__ = ["Plan", "Strategy"]


@dataclasses.dataclass(frozen=True)
class Strategy(Record):
    """One strategy for running a step.

    Attributes:
        name: "as it is", "slices of 32", "mixed precision", …
        peak_bytes: Its predicted peak, error bar included unless it is not sure; None where it
            could not be predicted.
        time_factor: Its predicted time, with the step as it is as 1.
        fits: Whether it fits the budget.
        exact: Whether it makes the same update as the whole batch.
        reason: Why it was not chosen; empty for the one that was chosen.
        slice_size: The size of its slices; None for the whole batch.
        mixed_precision: Whether it needs half precision.
        recompute: Blocks of layers that are computed again for their gradients, by name.
        ordered: Whether the ops run in an order that needs little memory.
        sure: Whether it fits with the error bar too; one that does not is chosen only where no
            other fits.
    """

    name: str
    peak_bytes: int | None
    time_factor: float
    fits: bool
    exact: bool = True
    reason: str = ""
    slice_size: int | None = None
    mixed_precision: bool = False
    recompute: tuple[tuple[str, ...], ...] = ()
    ordered: bool = False
    sure: bool = True


@dataclasses.dataclass(frozen=True)
class Plan(Record):
    """The fastest predicted strategy that fits.

    Attributes:
        model: The model's name.
        fingerprint: Which model it is for: its layers and weights, without their values.
        legroom: The version of legroom that made it.
        batch_size: The batch size.
        budget_bytes: What it was made for.
        chosen: The strategy to run it.
        alternatives: The others, with reasons.
        estimate: What the step as it is would take.
        next_better_bytes: The budget at which a faster strategy would fit; None for the fastest.
        notes: What a reader should know: what slices would change, for one.
        exact: Whether only strategies that make the same update were asked for.
        layers: The names that the layers had where something is recomputed; in another process
            they have others, in the same order.
    """

    VERSION: ClassVar[int] = 1

    model: str
    fingerprint: str
    legroom: str
    batch_size: int
    budget_bytes: int
    chosen: Strategy
    alternatives: tuple[Strategy, ...]
    estimate: Estimate
    next_better_bytes: int | None = None
    notes: tuple[str, ...] = ()
    exact: bool = False
    layers: tuple[str, ...] = ()

    @property
    def slice_size(self) -> int | None:
        """The size of the slices; None for the whole batch."""
        return self.chosen.slice_size

    def apply(self, model: Any) -> Any:
        """Have a model train by this plan from now on; returns the same model.

        Raises:
            LegroomError: If the plan is for another model, or another version of legroom.
        """
        from legroom.planning.bound import apply_plan

        return apply_plan(self, model)
