"""An optimizer tried out on a small variable: whether two ways of updating it come to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["same_after"]

_STEPS = 3
_RATE = 0.1  # so that a difference between updates is one between the variables

# A way of updating: of a copy of the optimizer, the variable, the rows of a gradient and the
# learning rate.
_Way = Callable[[Any, Any, Any, float], None]


def same_after(
    optimizer: Any,
    one: _Way,
    other: _Way,
    *,
    shape: tuple[int, ...] = (4, 3),
    rows: int | None = None,
    to_the_bit: bool = False,
) -> bool:
    """Whether both ways leave the same variable and the same state.

    The optimizer itself is not touched: each way has a copy of it.

    Args:
        optimizer: The optimizer.
        one: A way of updating.
        other: Another one.
        shape: Of the variable.
        rows: How many the gradient has; as many as the variable, unless it is a sparse one.
        to_the_bit: Whether rounding must be the same too.
    """

    def train(way: _Way) -> list[Any]:
        rng = np.random.default_rng(7)
        start = rng.normal(size=shape).astype("float32")
        variable = keras.Variable(start, name="legroom_small")  # not the user's name
        copy = type(optimizer).from_config(optimizer.get_config())
        copy.build([variable])
        size = (shape[0] if rows is None else rows, *shape[1:])
        for _ in range(_STEPS):
            # Of all magnitudes: what is added to a denominator shows in the small ones.
            gradient = rng.normal(size=size) * 10.0 ** rng.uniform(-8, 0, size)
            way(copy, variable, gradient.astype("float32"), _RATE)
            copy.iterations.assign_add(1)
        return [state.numpy() for state in (variable, *copy.variables)]

    same = np.array_equal if to_the_bit else _close
    with tf.init_scope():
        try:
            return all(same(a, b) for a, b in zip(train(one), train(other), strict=True))
        except Exception:  # an optimizer of the user's own may do anything at all here
            return False


def _close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-7))
