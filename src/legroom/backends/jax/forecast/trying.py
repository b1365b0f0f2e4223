"""Real steps of a program, run to see whether they fit.

They are run on zeros, beside the model, so that nothing about it changes. On a CPU nobody counts
what XLA's kernels take: the peak of the whole process tells, which Linux can reset. On a GPU
the rest of the memory is held meanwhile, and the model's own values wait in main memory; that is
not verified on one yet.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legroom.backends.jax.device import errors
from legroom.backends.jax.device.pool import Pool, default_pool
from legroom.backends.jax.forecast.keras_step import StepProgram
from legroom.backends.jax.step.state import variables_of
from legroom.core.errors import LegroomError
from legroom.machine.process import peak_resident_bytes, resident_bytes

__all__ = ["runs_within"]

# The second begins with what the first has left.
_STEPS = 2


def runs_within(model: Any, kind: str, step: StepProgram, limit: int) -> bool:
    """Run a model's step, and tell whether it stays within a limit.

    Args:
        model: The model.
        kind: "train", "test" or "predict".
        step: Its program.
        limit: The bytes there are.

    Raises:
        LegroomError: If the step fails for another reason.
    """
    pool = default_pool()
    on_card = pool.device.platform != "cpu"
    room = _only(pool, limit) if on_card else contextlib.nullcontext()
    elsewhere = _in_main_memory(model, kind) if on_card else contextlib.nullcontext()
    try:
        with elsewhere, room:
            taken = _run(kind, step)
    except Exception as error:
        if errors.is_oom(error):
            return False
        raise LegroomError(
            f"A step of {model.name!r} could not be tried: {' '.join(str(error).split())[:300]}"
        ) from error
    finally:
        gc.collect()
        pool.forget_cached()
    return on_card or taken <= limit


def _run(kind: str, step: StepProgram) -> int:
    """Run a few steps; returns their peak, as far as main memory shows it."""
    (state, data, *rest), named = jax.tree.map(
        lambda like: jnp.zeros(like.shape, like.dtype), step.compiled.args_info
    )
    jax.block_until_ready((state, data))
    gc.collect()
    default_pool().forget_cached()
    held, known = resident_bytes(), step.sure - step.taken
    begun = _begin_peak()
    for _ in range(_STEPS):
        made = jax.block_until_ready(step.compiled(state, data, *rest, **named))
        if kind == "train":
            state = made[1]
        del made
    if not begun:
        return known + step.taken + step.scratch[0]
    return known + max(0, peak_resident_bytes() - held)


def _begin_peak() -> bool:
    """Reset the peak of this process; only Linux can do that."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _only(pool: Pool, limit: int) -> Iterator[None]:
    """Hold all of a card's memory but so much."""
    most, used = pool.read_device().allocator_bytes, pool.in_use_bytes()
    spare = 0 if most is None or used is None else most - used - limit
    ballast = jax.block_until_ready(jnp.zeros(spare, jnp.uint8)) if spare > 0 else None
    try:
        yield
    finally:
        if ballast is not None:
            ballast.delete()


@contextlib.contextmanager
def _in_main_memory(model: Any, kind: str) -> Iterator[None]:
    """Keep a model's values where they do not take memory from what is tried."""
    model.jax_state_sync()
    kept = []
    for variable in (v for part in variables_of(kind, model) for v in part):
        value = variable._value
        if value is not None:
            kept.append((variable, np.array(value), value.sharding))
            value.delete()
    try:
        yield
    finally:
        for variable, value, sharding in kept:
            variable._value = jax.device_put(value, sharding)
