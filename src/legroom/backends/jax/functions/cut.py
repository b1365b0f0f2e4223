"""Where a step can be cut: what is done for each sample, and what for the batch.

The same step traced for two batch sizes tells which values have an axis of samples: those whose
shapes differ. What such values are reduced to (gradients, mostly, and the loss) is where the batch
ends: up to there slices can run one after the other, and the rest runs once, on what theirs add up
to.

Some steps need such a sum in the middle: what a masked loss is divided by. Where it depends on the
data only, it is counted first. Where it does not (BatchNorm), slices have their own, and what they
give is not exactly what the whole batch gives.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.extend.core as jex

from legroom.backends.jax.functions.flat import Flat, Place
from legroom.backends.keras.slices.rules import Refused

__all__ = ["Cut", "cut_of", "refuse_other_course"]

_SCOPE = re.compile(r"[A-Za-z_]\w*(?![\w(])")
_NO_SCOPES = frozenset(("step", "while", "cond", "body", "scan", "closed_call", "checkpoint"))


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a step is cut, for batches of any size.

    Attributes:
        counts: What is counted over all slices before they run.
        sums: What slices give to the rest of the step.
        scaled: For each of them, whether the number of samples has a part in it: then it is rather
            a mean than a sum.
        joined: For each of the step's outputs the axis on which those of slices are joined; None
            where it is made once.
        draws: The operations that draw random numbers for each sample.
        coupled: What mixes the samples of a batch, by name.
    """

    counts: Sequence[Place]
    sums: Sequence[Place]
    scaled: Sequence[bool]
    joined: Sequence[int | None]
    draws: Collection[int]
    coupled: Sequence[str]


def cut_of(flat: Flat, other: Flat, fixed: Collection[int]) -> Cut:
    """Where to cut a step.

    Args:
        flat: The step.
        other: The same for another number of samples.
        fixed: Which of its inputs are weights and their like: what depends on them is no count.

    Raises:
        Refused: If it can't be.
    """
    return _Cutting(flat, other, fixed).cut()


class _Cutting:
    def __init__(self, flat: Flat, other: Flat, fixed: Collection[int]) -> None:
        refuse_other_course(flat, other)
        self._flat = flat
        self._axes = _axes_of_samples(flat, other)
        self._scaling = _scaling(flat, other)
        self._tainted = self._reached(self._axes)
        self._of_weights = self._reached([flat.inputs[number] for number in fixed])

    def cut(self) -> Cut:
        flat = self._flat
        counts, coupled = self._joints()
        outputs = [x for x in flat.outputs if not isinstance(x, jex.Literal)]
        reduced: list[Any] = []
        seen: set[Any] = set()
        waiting = [x for x in outputs if x not in self._axes]
        while waiting:  # back from what the step returns to where slices end
            variable = waiting.pop()
            if variable in seen or variable not in flat.places or variable not in self._tainted:
                continue
            seen.add(variable)
            if self._is_of_samples(flat.places[variable][0]):
                reduced.append(variable)
            else:
                waiting += self._inputs(flat.places[variable][0])
        sums = sorted(flat.places[x] for x in reduced if x not in counts)
        joined = [None if isinstance(x, jex.Literal) else self._axes.get(x) for x in flat.outputs]
        wanted = [flat.at(x) for x in sums] + [x for x in outputs if x in self._axes]
        needed = flat.upstream(wanted, counts) | flat.upstream(counts)
        return Cut(
            counts=[flat.places[x] for x in counts],
            sums=sums,
            scaled=[bool(flat.upstream([flat.at(x)], counts) & self._scaling) for x in sums],
            joined=joined,
            draws=[number for number in needed if self._is_drawn(number)],
            coupled=coupled,
        )

    def _joints(self) -> tuple[list[Any], list[str]]:
        """What has to be counted first, and the names of what mixes samples otherwise."""
        flat = self._flat
        counts: dict[Any, None] = {}
        names: list[str] = []
        for number, operation in enumerate(flat.operations):
            if not self._is_of_samples(number):
                continue
            for variable in self._inputs(number):
                if variable in self._axes or variable not in self._tainted:
                    continue
                sources = self._sources(variable)
                if any(x in self._of_weights for x in sources):
                    names.append(_name(operation))
                else:
                    counts.update(dict.fromkeys(sources))
        for one in counts:
            if any(x in counts for x in self._given_to(flat.upstream([one]))):
                return [], [*names, "what the data is scaled by"]  # a count that needs another
        named = list(dict.fromkeys(name for name in names if name))
        return ([], named or ["a part of the step"]) if names else (list(counts), [])

    def _sources(self, variable: Any) -> list[Any]:
        """The sums over samples that a value comes from."""
        found, waiting, seen = [], [variable], set()
        while waiting:
            one = waiting.pop()
            if one in seen or one not in self._flat.places or one not in self._tainted:
                continue
            seen.add(one)
            number, _ = self._flat.places[one]
            if self._is_of_samples(number):
                found.append(one)
            else:
                waiting += self._inputs(number)
        return found

    def _given_to(self, numbers: Collection[int]) -> set[Any]:
        return {x for number in numbers for x in self._inputs(number)}

    def _inputs(self, number: int) -> list[Any]:
        operation = self._flat.operations[number]
        return [x for x in operation.invars if not isinstance(x, jex.Literal)]

    def _is_of_samples(self, number: int) -> bool:
        """Whether an operation reads or makes something that has an axis of samples."""
        made = self._flat.operations[number].outvars
        return any(x in self._axes for x in (*self._inputs(number), *made))

    def _is_drawn(self, number: int) -> bool:
        operation = self._flat.operations[number]
        return operation.primitive.name in ("random_bits", "random_split") and (
            operation.outvars[0] in self._axes and not self._inputs_of_samples(number)
        )

    def _inputs_of_samples(self, number: int) -> bool:
        return any(x in self._axes for x in self._inputs(number))

    def _reached(self, first: Collection[Any]) -> set[Any]:
        """All that depends on some values; what has an axis of samples depends on the batch."""
        reached = set(first)
        for number, operation in enumerate(self._flat.operations):
            if any(x in reached for x in self._inputs(number)):
                reached.update(operation.outvars)
        return reached


def refuse_other_course(flat: Flat, other: Flat) -> None:
    """Refuse a step that does something else for another number of samples."""
    courses = [[x.primitive.name for x in each.operations] for each in (flat, other)]
    if courses[0] != courses[1]:
        raise Refused("it does something else for another number of samples")


def _axes_of_samples(flat: Flat, other: Flat) -> dict[Any, int]:
    """The values that have an axis of samples, and which axis that is."""
    axes: dict[Any, int] = {}
    pairs = [*zip(flat.inputs, other.inputs, strict=True)]
    pairs += zip(flat.constants, other.constants, strict=True)
    for one, another in zip(flat.operations, other.operations, strict=True):
        pairs += zip(one.outvars, another.outvars, strict=True)
    for one, another in pairs:
        shapes = one.aval.shape, another.aval.shape
        if len(shapes[0]) != len(shapes[1]) or one.aval.dtype != another.aval.dtype:
            raise Refused("it makes something else of another number of samples")
        differing = [k for k, (m, n) in enumerate(zip(*shapes, strict=True)) if m != n]
        if differing:
            axes[one] = differing[0]
    return axes


def _scaling(flat: Flat, other: Flat) -> set[int]:
    """The operations that have the number of samples, or a share of it, for a constant."""
    found = set()
    for number, (one, another) in enumerate(zip(flat.operations, other.operations, strict=True)):
        for a, b in zip(one.invars, another.invars, strict=True):
            if isinstance(a, jex.Literal) and isinstance(b, jex.Literal) and _differ(a.val, b.val):
                found.add(number)
    return found


def _differ(one: Any, other: Any) -> bool:
    return getattr(one, "ndim", 0) == 0 and bool(one != other)


def _name(operation: Any) -> str:
    """The innermost scope that an operation was traced in; empty where nobody named any."""
    scopes: Mapping[str, None] = dict.fromkeys(
        word
        for word in _SCOPE.findall(str(operation.source_info.name_stack))
        if word not in _NO_SCOPES
    )
    return list(scopes)[-1] if scopes else ""
