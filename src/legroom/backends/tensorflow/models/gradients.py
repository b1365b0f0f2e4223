"""What the gradients of a model need, traced on shapes, with placeholders for its weights."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from legroom.backends.keras.reading import model_inputs
from legroom.backends.tensorflow.forecast.timeline import find_peak
from legroom.backends.tensorflow.graph.trace import GraphTrace
from legroom.core.errors import UnsupportedModelError

__all__ = ["step_bytes"]


def step_bytes(model: Any, samples: int, loss: Any = None) -> int:
    """The bytes that the gradients of a training step need beside weights and optimizer.

    Args:
        model: The model; its weights need no values.
        samples: The number of samples.
        loss: The loss as the user named it in ``compile``, or as a saved model has it.
    """
    states = [
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    known = model_inputs(model)
    if not known:
        raise UnsupportedModelError(
            f"{model.name} was never built: what it is called with is not known"
        )
    inputs = [tf.TensorSpec((samples, *tuple(one.shape)[1:]), one.dtype) for one in known]

    def step(trainable: Any, others: Any, inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            packed = _packed(model, inputs)
            outputs, _ = model.stateless_call(trainable, others, packed, training=True)
            value = _loss(loss, outputs)
        return tape.gradient(value, trainable)

    graph = tf.function(step).get_concrete_function(*states, inputs).graph
    trace = GraphTrace(graph, samples)
    return find_peak(trace.ops(samples), trace.kept).live_bytes


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
