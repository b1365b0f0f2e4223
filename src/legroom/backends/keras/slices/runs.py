"""What a run of a step on a few samples showed, whole or in slices: records of NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

__all__ = ["Decision", "Drawn", "Run"]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One random draw, as it was seen.

    Attributes:
        op: What drew.
        shape: Of its numbers.
        scope: Where: a path that has the layer's name in it.
    """

    op: str
    shape: tuple[int, ...]
    scope: str


@dataclasses.dataclass(frozen=True)
class Decision:
    """One choice between two that gradients depended on.

    Attributes:
        op: What chose.
        shape: Of its choices: one for each element.
        by: The numbers that it chose by; none where they were many.
    """

    op: str
    shape: tuple[int, ...]
    by: Sequence[Any]


@dataclasses.dataclass
class Run:
    """What a run over some slices showed. A whole batch is one slice.

    Attributes:
        sizes: The samples in each slice.
        outputs: By slice, the leaves of what the step returned.
        gradients: By slice, by apply, by variable; None where a variable has none.
        rows: The same way, how many rows a sparse gradient has; None for others.
        terms: By slice, the value of each loss term.
        names: What the terms are called.
        counts: By slice, what terms are divided by, where that is not the number of samples.
        draws: By slice, the random draws in order.
        batch_norms: The BatchNorm layers that would have used the batch's statistics.
        held: By slice, by update of a metric that was held back, its arguments.
        written: By id, each variable that was written, its value before and after.
        trained: The ids of the variables that optimizers look after, their own ones too.
        results: Which outputs are metrics' results.
        goes_on: Whether weights are looked at after the last apply.
        late: By id, the variables that are written after the last apply.
        refusal: Why an apply can't be made of slices.
        calls: By which functions of TensorFlow it called Python, or would have.
        summaries: Whether it would have written summaries.
        moved: The generators of Python and NumPy that it drew from.
        python: The names of what the step changed in Python.
        decisions: By slice, the choices that its gradients depended on, in order.
        counts_read: The counts of steps that it read before the optimizer moved them on.
    """

    sizes: Sequence[int]
    outputs: list[list[Any]] = dataclasses.field(default_factory=list)
    gradients: list[list[list[Any]]] = dataclasses.field(default_factory=list)
    rows: list[list[list[int | None]]] = dataclasses.field(default_factory=list)
    terms: list[list[Any]] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    counts: list[dict[int, Any]] = dataclasses.field(default_factory=list)
    draws: list[list[Drawn]] = dataclasses.field(default_factory=list)
    batch_norms: list[str] = dataclasses.field(default_factory=list)
    held: list[list[list[Any]]] = dataclasses.field(default_factory=list)
    written: dict[int, tuple[Any, Any, Any]] = dataclasses.field(default_factory=dict)
    trained: set[int] = dataclasses.field(default_factory=set)
    results: set[int] = dataclasses.field(default_factory=set)
    goes_on: bool = False
    late: dict[int, Any] = dataclasses.field(default_factory=dict)
    refusal: str | None = None
    calls: set[str] = dataclasses.field(default_factory=set)
    summaries: bool = False
    moved: list[str] = dataclasses.field(default_factory=list)
    python: list[str] = dataclasses.field(default_factory=list)
    decisions: list[list[Decision]] = dataclasses.field(default_factory=list)
    counts_read: list[Any] = dataclasses.field(default_factory=list)
