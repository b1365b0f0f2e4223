"""Half precision: what is added up, or compared, in more than that."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["as_float", "is_half", "summed_dtype"]

_HALVES = ("float16", "bfloat16")


def is_half(dtype: Any) -> bool:
    """Whether it is a type of half precision."""
    return str(dtype) in _HALVES


def summed_dtype(dtype: Any) -> Any:
    """What values of a type are added up in: half precision would lose what is small."""
    return jnp.float32 if is_half(dtype) else dtype


def as_float(value: Any) -> Any:
    """A value that NumPy can compute with."""
    return value.astype(jnp.float32) if is_half(value.dtype) else value
