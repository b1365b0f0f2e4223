"""What JAX keeps of trainings that are over."""

from __future__ import annotations

import gc
from typing import Any

import jax

from legroom.backends.jax.device.pool import default_pool

__all__ = ["forget_kernels", "release", "unpin", "weigh"]


def release() -> int:
    """Let go of all that a user would not miss; returns how many graphs were pinned."""
    gc.collect()
    forget_kernels()
    return 0


def unpin() -> int:
    """Let go of traced graphs that nobody can run any more: they go with their functions."""
    return 0


def forget_kernels() -> None:
    """Give back what the allocator keeps for later."""
    default_pool().forget_cached()


def weigh(value: Any) -> tuple[str, int] | None:
    """What an object is and weighs; None where it holds no memory by itself."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        return "array", 0 if value.is_deleted() else int(value.nbytes)
    return None
