"""A cut step as programs: a slice, what is counted before, and what runs once behind them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp

from legroom.backends.jax.functions.cut import Cut
from legroom.backends.jax.functions.flat import Flat
from legroom.backends.jax.slices.halves import summed_dtype
from legroom.backends.jax.slices.row_keys import draws_by_entry, later_bits, later_keys

__all__ = ["Parts", "Ways", "added", "beginning"]


@dataclasses.dataclass(frozen=True)
class Ways:
    """How what slices give is put together.

    Attributes:
        counts: For each count whether it is the slices' "sum", their "mean" by samples, or the
            "max" or "min" of them.
        sums: The same for what goes on to the rest of the step.
    """

    counts: Sequence[str]
    sums: Sequence[str]


class Parts:
    """The parts of a step that was traced for a number of samples.

    Args:
        flat: The step.
        cut: Where it is cut.
        samples: What it was traced for.
    """

    def __init__(self, flat: Flat, cut: Cut, samples: int) -> None:
        self._flat = flat
        self._cut = cut
        self._samples = samples
        self._joined = [
            x for x, axis in zip(flat.outputs, cut.joined, strict=True) if axis is not None
        ]

    def count(self, leaves: Sequence[Any], start: Any) -> list[Any]:
        """What is counted on these samples."""
        return self._run([self._flat.at(x) for x in self._cut.counts], leaves, (), start)

    def give(self, leaves: Sequence[Any], counts: Sequence[Any], start: Any) -> Any:
        """What these samples give to the rest of the step, and to what it returns for each."""
        wanted = [self._flat.at(x) for x in self._cut.sums] + self._joined
        made = self._run(wanted, leaves, counts, start)
        return made[: len(self._cut.sums)], made[len(self._cut.sums) :]

    def finish(
        self, leaves: Sequence[Any], counts: Sequence[Any], sums: Sequence[Any]
    ) -> list[Any]:
        """The rest of the step; None for what is joined."""
        flat = self._flat
        given = self._given(leaves)
        places = (*self._cut.counts, *self._cut.sums)
        for place, value in zip(places, (*counts, *sums), strict=True):
            variable = flat.at(place)
            given[variable] = value.astype(variable.aval.dtype)
        outputs = zip(flat.outputs, self._cut.joined, strict=True)
        wanted = [(x, axis is None) for x, axis in outputs]
        made = iter(flat.run([x for x, is_made in wanted if is_made], given))
        return [next(made) if is_made else None for _, is_made in wanted]

    def _run(
        self, wanted: Sequence[Any], leaves: Sequence[Any], counts: Sequence[Any], start: Any
    ) -> list[Any]:
        given = self._given(leaves)
        for place, value in zip(self._cut.counts, counts, strict=False):  # none yet, in a count
            variable = self._flat.at(place)
            given[variable] = value.astype(variable.aval.dtype)
        draws = _draws(self._flat, self._cut.draws, self._samples, start)
        return self._flat.run(wanted, given, draws)

    def _given(self, leaves: Sequence[Any]) -> dict[Any, Any]:
        pairs = zip(self._flat.inputs, leaves, strict=True)
        return {variable: value for variable, value in pairs if value is not None}


def _draws(
    flat: Flat, draws: Collection[int], samples: int, start: Any
) -> dict[int, Callable[[Sequence[Any]], Sequence[Any]]]:
    """Draws for the samples from one on, in the place of those from the first on."""
    if not draws_by_entry():
        return {}
    made = {number: _later(flat.operations[number], samples, start) for number in draws}
    return {number: draw for number, draw in made.items() if draw is not None}


def _later(
    operation: Any, samples: int, start: Any
) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """A draw for later samples; None where its entries are not in the order of samples."""
    shape = operation.params["shape"]
    if operation.invars[0].aval.shape or not shape or shape[0] % samples:
        return None
    first = jnp.asarray(start, jnp.uint32) * jnp.uint32(math.prod(shape) // samples)
    if operation.primitive.name == "random_bits":
        width = operation.params["bit_width"]
        return lambda inputs: [later_bits(inputs[0], first, width, shape)]
    if len(shape) > 1:
        return None
    return lambda inputs: [later_keys(inputs[0], first, shape[0])]


def beginning(way: str, like: Any) -> Any:
    """What slices are added to."""
    dtype = summed_dtype(like.dtype)
    if way in ("mean", "sum"):
        return jnp.zeros(like.shape, dtype)
    if dtype == jnp.bool_:
        return jnp.full(like.shape, way == "min")
    range_ = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    return jnp.full(like.shape, range_.min if way == "max" else range_.max, dtype)


def added(way: str, total: Any, value: Any, share: Any) -> Any:
    """One more slice."""
    value = value.astype(total.dtype)
    if way == "mean":
        return total + value * jnp.asarray(share, total.dtype)
    if way == "sum":
        return total + value
    return (jnp.maximum if way == "max" else jnp.minimum)(total, value)
