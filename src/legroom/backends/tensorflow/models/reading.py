"""A Keras model read, not run: its layers, and what a training step of it would make.

Nothing is allocated: steps are traced on shapes, with placeholders for weights, so a model can be
looked at in a process whose memory is full, and a saved one without loading its weights.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from legroom.backends.tensorflow.graph.trace import GraphTrace
from legroom.core.errors import UnsupportedModel
from legroom.messages.layers import LayerFacts

__all__ = [
    "architecture",
    "custom_classes",
    "is_recurrent",
    "layer_facts",
    "open_axes",
    "slot_bytes",
    "takes_tokens",
    "trace_step",
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
    return math.prod(tuple(variable.shape)) * int(tf.as_dtype(variable.dtype).size)


def weight_bytes(model: Any) -> int:
    """The bytes of all weights."""
    return sum(variable_bytes(variable) for variable in model.variables)


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
        fresh.build([keras.Variable(tf.zeros(stand_in), name="stand_in")])
        for slot in fresh.variables:
            lengths = tuple(slot.shape)
            if not lengths or any(length not in stand_in for length in lengths):
                continue
            axes = [stand_in.index(length) for length in lengths]
            size = tf.as_dtype(slot.dtype).size
            total += size * sum(
                math.prod(shape[axis] for axis in axes) for shape in shapes if len(shape) == rank
            )
    return total


def open_axes(model: Any) -> bool:
    """Whether inputs have axes beside the batch whose length the model leaves open."""
    return any(None in tuple(one.shape)[1:] for one in _inputs(model))


def takes_tokens(model: Any) -> bool:
    """Whether an input of one axis is a sequence, to be looked up in an embedding."""
    return any(type(layer).__name__ == "Embedding" for layer in _layers(model))


def is_recurrent(model: Any) -> bool:
    """Whether it has loops over time, of which a trace does not see what they keep."""
    return any(isinstance(layer, keras.layers.RNN) for layer in _layers(model))


def trace_step(model: Any, samples: int, loss: Any = None) -> GraphTrace:
    """Trace the gradients of a training step on this many samples.

    Args:
        model: The model; its weights need no values.
        samples: The number of samples.
        loss: The loss as the user named it in ``compile``, or as a saved model has it.
    """
    states = [
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    known = _inputs(model)
    if not known:
        raise UnsupportedModel(f"{model.name} was never built: what it is called with is not known")
    inputs = [tf.TensorSpec((samples, *tuple(one.shape)[1:]), one.dtype) for one in known]

    def step(trainable: Any, others: Any, inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            packed = _packed(model, inputs)
            outputs, _ = model.stateless_call(trainable, others, packed, training=True)
            value = _loss(loss, outputs)
        return tape.gradient(value, trainable)

    graph = tf.function(step).get_concrete_function(*states, inputs).graph
    return GraphTrace(graph, samples)


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


def _inputs(model: Any) -> list[Any]:
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


def _packed(model: Any, inputs: list[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is not None:
        return keras.tree.pack_sequence_as(structure, inputs)
    return inputs[0] if len(inputs) == 1 else inputs


def _loss(loss: Any, outputs: Any) -> Any:
    """The loss of a step; a mean of squares where none is known for an output."""
    flat = keras.tree.flatten(outputs)
    named = keras.tree.flatten(loss) if isinstance(loss, (list, tuple)) else [loss] * len(flat)
    if isinstance(loss, dict) and "class_name" not in loss:
        named = list(loss.values())
    if len(named) != len(flat):
        named = [None] * len(flat)
    return tf.add_n([_one_loss(*pair) for pair in zip(named, flat, strict=True)])


def _one_loss(loss: Any, output: Any) -> Any:
    output = tf.cast(output, "float32")  # as Keras's losses do, whatever the layers compute in
    if loss is not None:
        try:
            function = keras.losses.get(loss)
            name = str(getattr(function, "name", None) or getattr(function, "__name__", ""))
            shape = output.shape[:-1] if "sparse" in name else output.shape
            truth = tf.zeros(shape, "int32" if "sparse" in name else "float32")
            return tf.reduce_mean(function(truth, output))
        except Exception:  # a loss of the user's own may want anything
            pass
    return tf.reduce_mean(tf.square(output))
