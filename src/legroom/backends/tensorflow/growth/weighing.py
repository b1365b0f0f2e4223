"""What objects of TensorFlow and Keras weigh: those that hold memory by themselves."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import Variable  # keras.Variable is a class below it before 3.7

from legroom.backends.keras.models.reading import variable_bytes

__all__ = ["weigh"]


def weigh(value: Any) -> tuple[str, int] | None:
    """What an object is and weighs; None where it holds no memory by itself.

    A tape and an iterator hold some, and do not tell how much: they weigh nothing. Nor does a data
    set, beyond the arrays that were put into it.
    """
    kind = type(value)
    if kind.__name__ == "EagerTensor":
        return ("tensor", _bytes(value)) if value.dtype != tf.resource else None
    if isinstance(value, keras.Model):
        return "model", _model_bytes(value)
    if isinstance(value, tf.Variable):
        return "variable", _bytes(value)
    if isinstance(value, keras.callbacks.Callback):
        model = getattr(value, "_model", None)
        name = "History" if isinstance(value, keras.callbacks.History) else "callback"
        return None if model is None else (name, _model_bytes(model))
    if isinstance(value, Variable):
        return "variable", _bytes(value)
    if isinstance(value, keras.optimizers.Optimizer):
        return "optimizer", sum(map(_bytes, value.variables))
    if isinstance(value, keras.layers.Layer):
        return "layer", sum(map(_bytes, value.variables))
    if isinstance(value, tf.GradientTape):
        return "gradient tape", 0
    if isinstance(value, tf.data.Dataset):
        return "data set", _arrays_of(value)
    if isinstance(value, tf.data.Iterator):
        return "iterator", 0
    return None


def _arrays_of(dataset: Any) -> int:
    """The bytes of the arrays that a pipeline begins with, each counted once."""
    sizes: dict[int, int] = {}
    todo = [dataset]
    while todo:
        stage = todo.pop()
        sizes |= {id(tensor): _bytes(tensor) for tensor in getattr(stage, "_tensors", ())}
        todo += stage._inputs() if hasattr(stage, "_inputs") else []
    return sum(sizes.values())


def _model_bytes(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    slots = getattr(optimizer, "variables", None) or []
    return sum(map(_bytes, model.variables)) + sum(map(_bytes, slots))


def _bytes(value: Any) -> int:
    with contextlib.suppress(Exception):
        return variable_bytes(value)
    return 0
