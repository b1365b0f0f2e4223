"""Kernels of TensorFlow's that make the whole update of a variable in one pass, in place.

Keras writes an update as a chain of ops, most of them with a result of the variable's size. Where
a kernel does the same to the last bit, it takes no memory, and less time. (Adam's does not: it
rounds `1 - beta_2` in another way.)
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from legroom.backends.tensorflow.commit.rehearsal import same_after

__all__ = ["has_kernel", "updates_in_place", "write_in_place"]


def has_kernel(variable: Any) -> bool:
    """Whether there are kernels for variables of this type."""
    return keras.backend.standardize_dtype(variable.dtype) in ("float32", "float64")


def updates_in_place(optimizer: Any) -> bool:
    """Whether a kernel does what `update_step` does with a dense gradient; tried on a small one.

    Args:
        optimizer: One of Keras's own, or of a class that leaves the update as it is.
    """
    if not isinstance(optimizer, keras.optimizers.SGD):
        return False

    def by_keras(copy: Any, small: Any, rows: Any, rate: float) -> None:
        copy.update_step(tf.constant(rows), small, rate)

    def by_kernel(copy: Any, small: Any, rows: Any, rate: float) -> None:
        write_in_place(copy, small, tf.constant(rows), rate)

    return same_after(optimizer, by_keras, by_kernel, to_the_bit=True)


def write_in_place(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> Any:
    """Update a Keras variable from a dense gradient; returns the op."""
    rate = ops.cast(rate, variable.dtype)
    gradient = ops.cast(gradient, variable.dtype)
    if optimizer.momentum == 0:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=variable._value.handle, alpha=rate, delta=gradient
        )
    return tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable._value.handle,
        accum=optimizer.momentums[optimizer._get_variable_index(variable)]._value.handle,
        lr=rate,
        grad=gradient,
        momentum=ops.cast(optimizer.momentum, variable.dtype),
        use_nesterov=optimizer.nesterov,
    )
