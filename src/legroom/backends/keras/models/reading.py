"""A Keras model read, not run: its layers, its weights and what it is called with.

Nothing is allocated, so a model can be looked at in a process whose memory is full, and a saved one
without loading its weights.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it, and Keras needs it
import numpy as np

from legroom.messages.layers import LayerFacts

__all__ = [
    "architecture",
    "coupling_layers",
    "custom_classes",
    "layer_facts",
    "model_inputs",
    "open_axes",
    "parameters",
    "slot_bytes",
    "variable_bytes",
    "weight_bytes",
]

_PRIMES = (2, 3, 5, 7, 11, 13)


def layer_facts(model: Any) -> list[LayerFacts]:
    """The layers of a model, those of models inside it included."""
    found: list[LayerFacts] = []
    for layer in _layers(model):
        heads = getattr(layer, "num_heads", None) or getattr(layer, "num_query_heads", None)
        found.append(
            LayerFacts(
                name=layer.name,
                kind=type(layer).__name__,
                inputs=_shapes(layer, "input"),
                outputs=_shapes(layer, "output"),
                weights=tuple(
                    (weight.path.rsplit("/", 1)[-1], tuple(weight.shape))
                    for weight in _weights(layer)
                ),
                channels_first=getattr(layer, "data_format", None) == "channels_first",
                heads=heads if isinstance(heads, int) else None,
            )
        )
    return found


def architecture(model: Any) -> dict[str, Any] | None:
    """A model's architecture as data; None where only its own code knows it."""
    if isinstance(model, keras.Sequential) and model.built:
        return dict(keras.saving.serialize_keras_object(model))
    if getattr(model, "inputs", None) and getattr(model, "outputs", None):
        # Taken anew from its ends: a class of the user's own around it does not matter.
        inputs = getattr(model, "_inputs_struct", model.inputs)
        outputs = getattr(model, "_outputs_struct", model.outputs)
        plain = keras.Model(inputs, outputs, name=model.name)
        return dict(keras.saving.serialize_keras_object(plain))
    return None


def custom_classes(model: Any) -> dict[str, Any]:
    """The classes of layers that are not Keras's own, by name."""
    kinds = {type(layer) for layer in _layers(model)}
    return {kind.__name__: kind for kind in kinds if not kind.__module__.startswith("keras.")}


def variable_bytes(variable: Any) -> int:
    """The bytes of a weight, whether it has a value or not."""
    return math.prod(tuple(variable.shape)) * _item_bytes(variable)


def parameters(model: Any) -> int:
    """How many numbers a model's weights are."""
    return sum(math.prod(tuple(weight.shape)) for weight in model.weights)


def weight_bytes(model: Any) -> int:
    """The bytes of all weights."""
    return sum(map(variable_bytes, model.variables))


def slot_bytes(optimizer: Any, model: Any) -> int:
    """The bytes of what an optimizer keeps for a model's weights."""
    if optimizer.built:
        return sum(variable_bytes(one) for one in optimizer.variables if len(one.shape))
    total = 0
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    for rank in sorted({len(shape) for shape in shapes if shape}):
        # Built for a weight whose axes can be told apart, and read off for those of this rank.
        fresh = type(optimizer).from_config(optimizer.get_config())
        stand_in = _PRIMES[:rank]
        fresh.build([keras.Variable(keras.ops.zeros(stand_in, "float32"), name="stand_in")])
        for slot in fresh.variables:
            lengths = tuple(slot.shape)
            if not lengths or any(length not in stand_in for length in lengths):
                continue
            axes = [stand_in.index(length) for length in lengths]
            total += _item_bytes(slot) * sum(
                math.prod(shape[axis] for axis in axes) for shape in shapes if len(shape) == rank
            )
    return total


def open_axes(model: Any) -> bool:
    """Whether inputs have axes beside the batch whose length the model leaves open."""
    return any(None in tuple(one.shape)[1:] for one in model_inputs(model))


def model_inputs(model: Any) -> list[Any]:
    """What a model is called with: shape and type of each, or nothing where it was never built."""
    inputs = getattr(model, "inputs", None)
    if inputs:
        return list(inputs)
    try:
        shape = (model.get_build_config() or {}).get("input_shape")
    except NotImplementedError:
        return []
    if not isinstance(shape, (list, tuple)) or not all(isinstance(n, int) for n in shape[1:]):
        return []
    return [keras.KerasTensor((None, *shape[1:]), dtype=model.input_dtype)]


def coupling_layers(model: Any) -> list[str]:
    """The layers that look across the batch while training, as far as their class tells."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


def _layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers(include_self=False) if layer is not model]


def _weights(layer: Any) -> list[Any]:
    # A model inside the model is told of by its own layers.
    return [] if isinstance(layer, keras.Model) else list(layer.weights)


def _shapes(layer: Any, side: str) -> tuple[tuple[int | None, ...], ...]:
    try:
        tensors = keras.tree.flatten(getattr(layer, side))
    except (AttributeError, ValueError):  # never called, or not in a functional model
        return ()
    return tuple(tuple(tensor.shape) for tensor in tensors if hasattr(tensor, "shape"))


def _item_bytes(variable: Any) -> int:
    dtype = variable.dtype  # a name; but TensorFlow's own variables have a type that knows its size
    return int(dtype.size if hasattr(dtype, "size") else np.dtype(dtype).itemsize)
