"""Tracing a user's model without leaving a mark on it.

Beside what Keras keeps, TensorFlow's own registries are put back. Variables that are born inside
have no memory: their handles know shape and type, which is all that a trace needs, so that asking
about a model that is too large for this machine does not run out of memory itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from legroom.backends import patches
from legroom.backends.keras.models import untouched as of_keras

__all__ = ["untouched", "without_memory"]

_ZEROS = "keras.src.initializers.constant_initializers:Zeros"


@contextlib.contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Put back everything that happens to these models, and around them, inside.

    Args:
        roots: Models, or whatever holds layers, optimizers and metrics.
    """
    eager = context.context()
    generator = getattr(eager, "_rng", None)
    eager_state = None if generator is None else generator.getstate()
    # What an optimizer registers while it is traced would hold the graph, and with it all
    # variables, for the rest of the process.
    gradients = set(ops.gradient_registry.list())
    try:
        with of_keras.untouched(*roots):
            yield
    finally:
        if generator is not None:
            generator.setstate(eager_state)
        for name in set(ops.gradient_registry.list()) - gradients:
            del ops.gradient_registry._registry[name]


@contextlib.contextmanager
def without_memory() -> Iterator[list[Any]]:
    """Give variables that are born inside no memory; yields the list of them, as it grows."""
    born: list[Any] = []

    def create(make: Any, **options: Any) -> Any:
        value: Any = options.get("initial_value")
        if callable(value):
            # Called in a graph that is thrown away: only its shape is asked for. Slots begin as
            # zeros, hundreds of them, and need no graph for that.
            with tf.Graph().as_default(), patches.replaced(_ZEROS, "__call__", _shape_of_zeros):
                value = value()
        value = tf.nest.flatten(value)[0] if not hasattr(value, "shape") else value
        variable = resource_variable_ops.UninitializedVariable(
            trainable=options.get("trainable"),
            shape=options.get("shape") or value.shape,
            dtype=tf.as_dtype(options.get("dtype") or value.dtype),
        )
        if options.get("name"):
            # Not by the argument: TensorFlow makes a kernel for each name, and that takes longer
            # than all the rest.
            variable._handle_name = f"{options['name']}:0"
        born.append(variable)
        return variable

    # In the eager context, because that is where Keras makes its variables, whatever it traces.
    with tf.variable_creator_scope(create):
        yield born


def _shape_of_zeros(original: Callable[..., Any]) -> Callable[..., Any]:
    def zeros(initializer: Any, shape: Any, dtype: Any = None) -> Any:
        return tf.TensorSpec(shape, keras.backend.standardize_dtype(dtype))

    return zeros
