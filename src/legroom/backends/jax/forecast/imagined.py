"""Variables without memory: those of models, optimizers and metrics that are only asked about.

They know their shape and type, which is all that a step is compiled for. Whoever computes with one
while a function is traced gets zeros that are part of the trace and are never there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from keras.backend import standardize_dtype

from legroom.backends import patches
from legroom.backends.parts import VARIABLE

__all__ = ["shape_of", "without_memory"]

# Smaller ones have their values, which are looked at: learning rates, counts, seeds.
_SMALL = 1024


def shape_of(variable: Any) -> jax.ShapeDtypeStruct:
    """What a program is compiled for, of a variable whose value nobody needs."""
    dtype = jax.dtypes.canonicalize_dtype(standardize_dtype(variable.dtype))
    return jax.ShapeDtypeStruct(tuple(variable.shape), dtype)


def _zeros(shape: tuple[int, ...], dtype: Any = None) -> Any:
    return jnp.zeros(shape, dtype)


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Give variables that are made inside no memory."""

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(self: Any, initializer: Any) -> None:
            if math.prod(self._shape) <= _SMALL:
                original(self, initializer)
            else:
                # As Keras has it for one whose value is made later: until then, what is traced
                # gets what this returns.
                self._value, self._initializer = None, _zeros

        return initialize

    def deferring(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(self: Any) -> None:
            if math.prod(self._shape) <= _SMALL:
                original(self)

        return initialize

    with (
        patches.replaced(VARIABLE, "_initialize_with_initializer", making),
        patches.replaced(VARIABLE, "_deferred_initialize", deferring),
    ):
        yield
