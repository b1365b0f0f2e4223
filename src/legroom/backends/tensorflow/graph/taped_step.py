"""What a step takes when it is run op by op: a tape keeps what the gradients will need."""

from __future__ import annotations

import tensorflow as tf

from legroom.backends.tensorflow.graph.axes import axes_of
from legroom.backends.tensorflow.graph.scratch import WITH_SCRATCH, scratch_of
from legroom.backends.tensorflow.graph.stepgraph import StepGraph
from legroom.backends.tensorflow.graph.trace import PASS_ON
from legroom.core.graphs import bytes_at
from legroom.messages.reading.ops import role_of_op

__all__ = ["eager_bytes"]

# Ops whose gradients are made of what they return, and those that need neither that nor their
# inputs. All others keep their inputs.
_KEEP_OUTPUTS = {"Relu", "Relu6", "Elu", "Selu", "Sigmoid", "Tanh", "Softmax", "Exp", "Sqrt",
                 "Rsqrt", "LogSoftmax"}  # fmt: skip
_KEEP_NOTHING = {"Add", "AddV2", "AddN", "BiasAdd", "Sub", "Neg", "Mean", "Sum", "Pad", "PadV2",
                 "ConcatV2", "Pack", "Unpack", "Split", "SplitV", "StridedSlice", "Transpose",
                 "Cast", "AvgPool", "Tile", "Shape", "BroadcastTo"}  # fmt: skip
_KEEP_NO_INPUTS = _KEEP_OUTPUTS | _KEEP_NOTHING | PASS_ON


def eager_bytes(step: StepGraph, samples: int) -> int:
    """About what a step takes beside its weights, run eagerly on so many samples.

    Args:
        step: The step, traced for `TRACED_SIZE` samples.
        samples: The number of samples.
    """
    taped = {item.name for item in step.held if item.taped}
    kept = scratch = 0.0
    seen = set()  # what the tape sees: all that is made with a variable that it watches
    for op in step.graph.get_operations():
        if op.type in WITH_SCRATCH:
            fixed, each, _ = scratch_of(op)
            scratch = max(scratch, fixed + each * samples)
        watched = op.name in taped or any(tensor.ref() in seen for tensor in op.inputs)
        if not watched or role_of_op(op.name) in ("gradient", "optimizer"):
            continue
        for tensor in op.outputs:
            seen.add(tensor.ref())
            if op.name not in taped and _is_kept(op, tensor):
                shape, itemsize = tensor.shape, tensor.dtype.size or 0
                if shape.is_fully_defined():
                    kept += bytes_at((axes_of(tuple(shape.as_list())), float(itemsize)), samples)
    gradients = sum(item.nbytes for item in step.held if item.taped)
    return int(kept + scratch + gradients)


def _is_kept(op: tf.Operation, tensor: tf.Tensor) -> bool:
    if op.type == "ReadVariableOp":
        return False  # the variable's own memory
    if op.type in _KEEP_OUTPUTS:
        return True
    return any(
        reader.type not in _KEEP_NO_INPUTS
        and role_of_op(reader.name) not in ("gradient", "optimizer")
        for reader in tensor.consumers()
    )
