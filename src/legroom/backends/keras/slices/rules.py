"""What has to be known of a step before its batch may be cut into slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["OVERWRITTEN", "Draw", "Refused", "Rules", "Unshown"]

OVERWRITTEN = (
    "it has variables that are overwritten with their gradients, as float8 layers have, and those "
    "of slices do not add up"
)


class Refused(Exception):
    """A step can't be sliced at all; the message says why, as `Rules.refusal` does."""


class Unshown(Refused):
    """The samples that were tried do not show how slices are put together; others may."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """A random draw of a step, for batches of any size.

    Attributes:
        op: What draws.
        axes: The length of each axis; for one that grows with the batch, that of one sample.
        grows: Which axes these are.
        scope: Where it is drawn: a path that has the layer's name in it.
        way: How slices draw it: "rows" of the whole batch's, "same" in each of them, or "apart":
            other numbers than the whole batch would have drawn.
        even: Whether it is drawn as often on every batch, whatever its size.
    """

    op: str
    axes: tuple[int, ...]
    grows: tuple[bool, ...]
    scope: str
    way: str
    even: bool = True

    def fits(self, op: str, shape: tuple[int, ...] | None, samples: int) -> bool:
        """Whether this may be the draw of this op and shape, on so many samples."""
        axes = tuple(n * samples if g else n for n, g in zip(self.axes, self.grows, strict=True))
        return op == self.op and (shape is None or shape == axes)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a step's slices are put together to the step of the whole batch.

    Attributes:
        applies: How many optimizers the step applies, in turn.
        gradients: For each of them whether the whole batch's gradient is the "mean" of the
            slices' (weighted by samples) or their "sum"; None where it is neither, and the mean is
            taken.
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
        calls: By which functions of TensorFlow the step calls Python: each slice does, and what
            that changes can't be known.
        summaries: Whether the step writes summaries: the last slice writes them.
        refusal: Why the step can't be sliced at all; None where it can.
        unverified: Why the comparison could not be made; None where it was.
    """

    applies: int = 1
    gradients: Sequence[str | None] = ("mean",)
    rows: Sequence[Sequence[str | None]] = ()
    terms: Sequence[str | None] = ()
    outputs: Sequence[str] = ()
    counts: bool = False
    metrics: Sequence[Any] = ()
    held: Sequence[Sequence[str]] = ()
    late: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    concatenates: bool = False
    unweighted: Sequence[Any] = ()
    coupled: Sequence[str] = ()
    draws: Sequence[Draw] = ()
    seeds: Sequence[Any] = ()
    redrawn: Sequence[str] = ()
    calls: Sequence[str] = ()
    summaries: bool = False
    refusal: str | None = None
    unverified: str | None = None

    @property
    def exact(self) -> bool:
        """Whether slices give what the whole batch gives."""
        return not (self.coupled or self.redrawn or self.calls)
