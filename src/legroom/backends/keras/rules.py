"""What has to be known of a step before its batch may be cut into slices."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Rules"]


@dataclasses.dataclass
class Rules:
    """How a step's slices are put together to the step of the whole batch.

    Attributes:
        applies: How many optimizers the step applies, in turn.
        gradients: For each of them whether the whole batch's gradient is the "mean" of the
            slices' (weighted by samples) or their "sum".
        rows: For each apply and variable, what a sparse gradient has rows for: "samples", which
            optimizers take one by one, or "entries" of the table, whose rows are one already.
        terms: For each loss term the same; None where its own reduction tells.
        outputs: For each leaf of what the step returns: "last" (a running metric), "mean", "sum",
            "concat". Results of `metrics` are told by themselves.
        counts: Whether a loss term counts something else than samples (a mask's valid entries).
        metrics: Metrics that need the whole batch at once; they are updated once, with what the
            slices would have given them put together.
        held: For each update of theirs, how each of its arguments is put together.
        unweighted: Those of `metrics` to which each batch counts the same, whatever its size.
        late: Variables that the step writes after its last apply, from the new weights: once a
            step, when all slices are through. By their ids.
        concatenates: Whether every result that has one entry a sample is simply joined.
        coupled: Layers and losses that mix the samples of a batch, so that slices give another
            result. Empty for a step that can be sliced exactly.
        draws: The random draws of the step, in order, for batches of any size.
        seeds: The variables that its seeds come from: each slice begins with those of the step.
        redrawn: Layers that draw other numbers in slices than for the whole batch.
        refusal: Why the step can't be sliced at all; None where it can.
        unverified: Why the comparison could not be made; None where it was.
    """

    applies: int = 1
    gradients: list[str] = dataclasses.field(default_factory=lambda: ["mean"])
    rows: list[list[str | None]] = dataclasses.field(default_factory=list)
    terms: list[str | None] = dataclasses.field(default_factory=list)
    outputs: list[str] = dataclasses.field(default_factory=list)
    counts: bool = False
    metrics: list[Any] = dataclasses.field(default_factory=list)
    held: list[list[str]] = dataclasses.field(default_factory=list)
    late: dict[int, Any] = dataclasses.field(default_factory=dict)
    concatenates: bool = False
    unweighted: list[Any] = dataclasses.field(default_factory=list)
    coupled: list[str] = dataclasses.field(default_factory=list)
    draws: list[Any] = dataclasses.field(default_factory=list)
    seeds: list[Any] = dataclasses.field(default_factory=list)
    redrawn: list[str] = dataclasses.field(default_factory=list)
    refusal: str | None = None
    unverified: str | None = None

    @property
    def exact(self) -> bool:
        """Whether slices give what the whole batch gives."""
        return not self.coupled and not self.redrawn
