"""What each layer of a model keeps for its gradient, and what running it again would cost.

Read off a trace of the model's forward and backward pass: an op belongs to the layer during whose
call it was traced, and a tensor is kept if an op of the backward pass reads it.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from legroom.backends import patches
from legroom.backends.keras.models.layer_spans import Span, watching_layers
from legroom.backends.keras.recompute_blocks import functional_parts
from legroom.backends.tensorflow.graph.specs import batch_specs
from legroom.backends.tensorflow.graph.trace import FREE, PASS_ON
from legroom.backends.tensorflow.graph.untouched import untouched
from legroom.backends.tensorflow.step.traits import own_function
from legroom.core.aside import say_left_out
from legroom.core.traces import LayerCost

__all__ = ["layer_costs", "step_costs"]

# Floating-point operations that take as long as one byte takes to be read or written.
_OPERATIONS_PER_BYTE = 12


def step_costs(
    model: Any, samples: int, data: Any = None, length: int | None = None
) -> tuple[list[LayerCost], bool]:
    """The layers of a model as a training step runs them, which changes nothing about it.

    Args:
        model: The model, built.
        samples: The number of samples in a batch.
        data: One batch or its specs, where the model alone does not tell what it is given.
        length: What open axes of the inputs other than the first stand for.

    Returns:
        As `layer_costs`; nothing for a model that can't be called on its inputs alone.
    """
    for specs in batch_specs(model, "fit", data, length):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(specs)
        x = tree.map_structure(
            lambda spec: tf.TensorSpec((samples, *spec.shape[1:]), spec.dtype), x
        )
        with untouched(model):
            return layer_costs(model, x)
    return [], False


def layer_costs(model: Any, inputs: Any) -> tuple[list[LayerCost], bool]:
    """The layers of a model in the order in which they run; of several models, the largest's.

    Args:
        model: The model, built.
        inputs: A batch of its inputs: arrays, tensors or their specs. Nothing is run on it.

    Returns:
        The layers, and whether neighbours can be joined to a block; else each is one by itself.
        Nothing for a model that can't be called on its inputs alone.
    """
    if (lacking := patches.missing("recompute")) is not None:
        say_left_out("nothing is recomputed", lacking)
        return [], False
    try:
        return _read_costs(model, inputs)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return [], False


def _read_costs(model: Any, inputs: Any) -> tuple[list[LayerCost], bool]:
    parts = functional_parts(model)
    spans: dict[int, list[Span]] = {}

    def forward_and_backward(x: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        with tf.GradientTape() as tape:
            with watching_layers(model, parts, spans, _count):
                outputs = model(x, training=True)
            floats = [y for y in tree.flatten(outputs) if y.dtype.is_floating]
            total = [tf.reduce_sum(tf.cast(y, tf.float32)) for y in [*floats, *model.losses]]
        graph.legroom_forward = len(graph.get_operations())
        weights = [v._value for v in model.trainable_variables]
        return tape.gradient(total, weights)

    function = own_function(forward_and_backward, None)
    graph = function.get_concrete_function(tree.map_structure(_spec, inputs)).graph
    kept, read = _kept(graph, graph.legroom_forward)
    ops = graph.get_operations()
    rows = [
        [
            LayerCost(
                span.name,
                sum(kept[span.start : span.stop]),
                sum(map(_bytes, span.incoming)),
                sum(_work(op) for op in ops[span.start : span.stop]),
                sum(_bytes(x) for x in span.incoming if _origin(x).name in read),
            )
            for span in found
        ]
        for found in spans.values()
    ]
    most = max(rows, key=lambda row: sum(cost.kept_bytes for cost in row), default=[])
    return most, bool(parts)


def _count() -> int:
    return len(tf.compat.v1.get_default_graph().get_operations())


def _kept(graph: Any, forward: int) -> tuple[list[int], set[str]]:
    """What the backward pass reads: the bytes by op, in order, and the names of the tensors."""
    ops = graph.get_operations()
    place = {op.name: i for i, op in enumerate(ops)}
    kept = [0] * len(ops)
    read = set[str]()
    for op in ops[forward:]:
        for tensor in map(_origin, op.inputs):
            at = place[tensor.op.name]
            if at < forward and tensor.name not in read and tensor.op.type not in FREE:
                read.add(tensor.name)
                kept[at] += _bytes(tensor)
    return kept, read


def _origin(tensor: Any) -> Any:
    """The tensor whose memory this one is."""
    while tensor.op.type in PASS_ON and tensor.op.inputs:
        tensor = tensor.op.inputs[min(tensor.value_index, len(tensor.op.inputs) - 1)]
    return tensor


def _work(op: Any) -> float:
    """The time an op takes, in bytes read and written."""
    if op.type in PASS_ON or op.type in FREE:
        return 0.0
    moved = sum(_bytes(x) for x in [*op.inputs, *op.outputs])
    if not op.outputs:
        return 0.0
    made = _entries(op.outputs[0])
    operations = 0
    if op.type in ("Conv2D", "DepthwiseConv2dNative", "Conv3D") and op.inputs[1].shape.rank:
        filters = op.inputs[1].shape
        depth = -1 if op.type != "DepthwiseConv2dNative" else -2
        operations = 2 * made * _entries(op.inputs[1]) // max(1, filters[depth] or 1)
    elif op.type in ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "_FusedMatMul"):
        inner = _entries(op.inputs[0]) * _entries(op.inputs[1]) / max(1, made)
        operations = int(2 * made * math.sqrt(max(1.0, inner)))
    elif op.type in ("While", "StatelessWhile"):
        return 20.0 * moved  # a step for each entry of a sequence: long, and mostly overhead
    return moved + operations / _OPERATIONS_PER_BYTE


def _entries(tensor: Any) -> int:
    return math.prod(length or 1 for length in tensor.shape) if tensor.shape.rank else 1


def _bytes(tensor: Any) -> int:
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return 0
    return _entries(tensor) * tensor.dtype.size


def _spec(x: Any) -> Any:
    if isinstance(x, keras.KerasTensor):
        return tf.TensorSpec(x.shape, x.dtype)
    return tf.TensorSpec(x.shape, tf.as_dtype(x.dtype))
