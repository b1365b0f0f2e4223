"""The parts of what a program takes, as estimates show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from legroom.backends.jax.forecast.hlo import read_program
from legroom.backends.jax.forecast.holders import by_kind, by_layer
from legroom.backends.jax.forecast.keras_step import StepProgram
from legroom.backends.jax.forecast.live_buffers import live_buffers

__all__ = ["look_into"]

# Where less than this share of a program's memory is accounted for, it was not understood.
_ENOUGH = 0.7

_Parts = tuple[Mapping[str, int], tuple[tuple[str, int], ...], Sequence[tuple[str, int]]]


def look_into(step: StepProgram, taken: int) -> _Parts:
    """What a step takes beside what is held and given to it.

    Args:
        step: The step.
        taken: How much that is at its peak.

    Returns:
        The bytes by kind; layers with their bytes, the largest first, with their weights; and ops
        in order, with the bytes after each. The last two are empty where the program does not tell.
    """
    program = read_program(step.compiled)
    if program is None:
        return {"activations": taken}, (), ()
    (most, _, live), line = live_buffers(program)
    if most < _ENOUGH * program.temporary:
        return {"activations": taken}, (), ()
    # Buffers that share their memory count in each kind: together they take what there is.
    raw = by_kind(program, live, step.trained)
    share = min(1.0, most / max(1, sum(raw.values())))
    kinds = Counter({name: int(share * size) for name, size in raw.items()})
    kinds["gradients"] += step.sums
    # What kernels take, what lies idle between buffers, and what the step returns.
    kinds["workspace"] += taken - sum(kinds.values())
    layers = Counter(step.layers)
    layers.update(by_layer(program, live, step.layers))
    shown = tuple((name, size) for name, size in layers.most_common() if size)
    beside = taken - most
    return kinds, shown, [(op, beside + size) for op, size in line]
