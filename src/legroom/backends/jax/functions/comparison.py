"""How slices make up a step, found out on a few samples: run at once, and in two slices.

Weights that are zero, as they often are at the beginning, would show nothing: all are moved a
little for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legroom.backends.jax.device.pool import Pool
from legroom.backends.jax.functions.cut import Cut
from legroom.backends.jax.functions.parts import Parts, Ways
from legroom.backends.jax.slices.halves import as_float
from legroom.backends.jax.slices.thinned import MOST, thinned
from legroom.backends.jax.step.program import Program
from legroom.backends.keras.slices.rules import Refused

__all__ = ["ENOUGH", "few_of", "ways_of"]

# With so many, slices of a trial have two samples and more.
ENOUGH = 5
# Of the largest entry, what the order of additions may change.
_NEAR, _NEAR_HALVES = 2e-4, 3e-2
_WAYS: dict[str, Callable[..., Any]] = {
    "mean": lambda parts, shares: sum(x * s for x, s in zip(parts, shares, strict=True)),
    "sum": lambda parts, shares: sum(parts),
    "max": lambda parts, shares: functools.reduce(np.maximum, parts),
    "min": lambda parts, shares: functools.reduce(np.minimum, parts),
}


def few_of(samples: int) -> tuple[int, int]:
    """The samples of the two slices that a batch is tried with.

    Raises:
        Refused: If there are no two samples.
    """
    if samples < 2:
        raise Refused("its batch is a single sample")
    few = min(ENOUGH, samples)
    return few - few // 2, few // 2


def ways_of(
    cut: Cut,
    parts: Callable[[int], Parts],
    leaves: Callable[[int, int], list[Any]],
    weights: Sequence[int],
    sizes: tuple[int, int],
    pool: Pool,
    *,
    halves: bool,
) -> Ways:
    """How slices are put together.

    Args:
        cut: Where the step is cut.
        parts: Its parts for so many samples.
        leaves: What it is called with, for the samples from one number to another.
        weights: Which of it is trained.
        sizes: The samples of the two slices.
        pool: Where it runs.
        halves: Whether it computes in half precision.

    Raises:
        Refused: If what slices give does not make up the whole batch's.
    """
    few = sum(sizes)
    spans = [(0, few), (0, sizes[0]), (sizes[0], few)]

    def run(what: Callable[[Parts], Callable[..., Any]], *args: Any) -> list[Any]:
        found = []
        for start, stop in spans:
            function = functools.partial(_tried, what(parts(stop - start)), weights)
            program = Program(function, pool, once=True)
            made = program(leaves(start, stop), *args, jnp.uint32(start))
            found.append([[np.asarray(x) for x in each] for each in made])
        return found

    trial = _Trial([size / few for size in sizes], _NEAR_HALVES if halves else _NEAR)
    counts: list[Any] = []
    count_ways: list[str] = []
    if cut.counts:
        whole, *slices = run(lambda part: lambda *args: (part.count(*args), []))
        counts = whole[0]
        count_ways = trial.ways(whole[0], [x[0] for x in slices], [False] * len(counts), ())
    whole, *slices = run(lambda part: part.give, counts)
    sums = trial.ways(whole[0], [x[0] for x in slices], cut.scaled, cut.coupled)
    for one, *pieces in zip(whole[1], *(x[1] for x in slices), strict=True):
        if not cut.coupled and not trial.is_joined(one, pieces):
            raise Refused("what it returns for each sample depends on the others")
    return Ways(count_ways, sums)


def _tried(
    function: Callable[..., Any], weights: Sequence[int], leaves: list[Any], *args: Any
) -> Any:
    moved = [_moved(x, number) if number in weights else x for number, x in enumerate(leaves)]
    sums, joined = function(moved, *args)
    return [_told(x) for x in sums], [_told(x) for x in joined]


def _told(value: Any) -> Any:
    return as_float(thinned(value))


def _moved(leaf: Any, number: int) -> Any:
    """Weights a little larger than they are, each in another way."""
    if leaf is None or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return leaf
    leaf = jnp.asarray(leaf)
    key = jax.random.fold_in(jax.random.key(0), number)
    by = jax.random.uniform(key, leaf.shape, jnp.float32)
    return (leaf * (1 + 0.1 * by) + 0.02 * by).astype(leaf.dtype)


class _Trial:
    """What two slices gave, beside what they give together.

    Args:
        shares: Their shares of the samples.
        near: Of the largest entry, how much may differ.
    """

    def __init__(self, shares: Sequence[float], near: float) -> None:
        self._shares = shares
        self._near = near

    def ways(
        self,
        whole: Sequence[Any],
        slices: Sequence[Sequence[Any]],
        scaled: Sequence[bool],
        coupled: Sequence[str],
    ) -> list[str]:
        """How each value of the whole is put together."""
        found = []
        for one, parts, by_samples in zip(whole, zip(*slices, strict=True), scaled, strict=True):
            likely = "mean" if by_samples else "sum"
            fitting = [way for way in _WAYS if self._fits(way, one, parts)]
            if likely in fitting or (coupled and not fitting):
                found.append(likely)
            elif fitting:
                found.append(fitting[0])
            elif not np.isfinite(one).any():
                raise Refused("it computes no numbers here (NaN), so slices can't be compared")
            else:
                raise Refused("slices do not make up what it does with the whole batch")
        return found

    def is_joined(self, whole: Any, parts: Sequence[Any]) -> bool:
        """Whether a value for each sample is the same in slices."""
        if whole.size >= MOST:
            return True  # sums over all of it, which can't be joined
        axis = next((k for k, n in enumerate(whole.shape) if n != parts[0].shape[k]), 0)
        return self._is_near(np.concatenate(parts, axis=axis), whole, parts)

    def _fits(self, way: str, whole: Any, parts: Sequence[Any]) -> bool:
        if whole.dtype.kind not in "fc" and way == "mean":
            return False
        if whole.dtype == bool and way == "sum":
            return False
        if whole.size >= MOST and way in ("max", "min"):
            return False  # these are sums of entries
        return self._is_near(_WAYS[way](parts, self._shares), whole, parts)

    def _is_near(self, made: Any, whole: Any, parts: Sequence[Any]) -> bool:
        exact = np.asarray(whole, np.float64)
        if made.shape != whole.shape or (whole.size and not np.isfinite(exact).any()):
            return False
        scale = max(float(np.nanmax(np.abs(np.asarray(x, np.float64)), initial=0)) for x in parts)
        off = np.abs(np.asarray(made, np.float64) - exact)
        return bool(np.nanmax(off, initial=0) <= self._near * scale)
