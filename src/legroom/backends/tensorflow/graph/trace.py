"""The ops of a traced step, with the bytes each makes at a given number of samples."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from legroom.backends.tensorflow.graph.scratch import WITH_SCRATCH, scratch_bytes
from legroom.core.traces import TracedOp

__all__ = ["FREE", "PASS_ON", "REUSE", "GraphTrace", "with_shapes"]

# Ops whose output is their input's memory.
PASS_ON = {
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "ReadVariableOp",
    "PreventGradient", "CheckNumerics", "EnsureShape", "Bitcast",
}  # fmt: skip
# Elementwise ops, which write over an input where nobody else needs it.
REUSE = {
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "BitwiseAnd", "BitwiseOr", "Ceil", "Cos", "Div",
    "DivNoNan", "Elu", "EluGrad", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorMod", "Inv",
    "LeakyRelu", "LeakyReluGrad", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "LogicalNot",
    "LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal",
    "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Round", "Rsqrt", "RsqrtGrad", "Select", "SelectV2",
    "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Softmax", "Softplus",
    "SoftplusGrad", "Softsign", "SoftsignGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference",
    "Sub", "Tanh", "TanhGrad", "Xlogy",
}  # fmt: skip
# Ops whose output takes no memory to speak of.
FREE = {"Placeholder", "Const", "NoOp", "Shape", "Size", "Rank", "VarHandleOp"}


class GraphTrace:
    """A step's graph, as a function of how many samples it runs on.

    Args:
        graph: The traced graph.
        samples: The number of samples in the batch.
        data: The batch. A graph that was traced without its shapes gets them from it.
    """

    def __init__(self, graph: Any, samples: int, data: Any = None) -> None:
        self._samples = samples
        self.kept = [tensor.name for tensor in graph.outputs]
        shaped = graph if data is None else with_shapes(graph, data)
        self._ops = [_Op(op) for op in shaped.get_operations()]
        self._shapes = {
            name: (shape, dtype) for op in self._ops for name, shape, dtype in op.outputs
        }

    @property
    def loops(self) -> bool:
        """Whether it has loops, whose inside is not looked at here."""
        return any(op.kind in ("While", "StatelessWhile") for op in self._ops)

    def ops(self, samples: int) -> list[TracedOp]:
        """The ops in order, with the bytes they make on this many samples."""
        return [
            TracedOp(
                op.name,
                tuple(
                    (name, self._bytes(op.kind, shape, dtype, samples))
                    for name, shape, dtype in op.outputs
                ),
                op.inputs,
                passes_on=op.kind in PASS_ON,
                may_reuse=op.kind in REUSE,
                scratch=self._scratch(op, samples),
            )
            for op in self._ops
        ]

    def _scratch(self, op: _Op, samples: int) -> int:
        if op.kind not in WITH_SCRATCH:
            return 0
        inputs = [self._lengths(self._shapes[name][0], samples) for name in op.inputs]
        _, shape, dtype = op.outputs[0]
        lengths = self._lengths(shape, samples)
        if lengths is None or any(length is None for length in inputs):
            return 0
        return scratch_bytes(op.kind, [x for x in inputs if x is not None], lengths, dtype.size)

    def _bytes(self, kind: str, shape: Any, dtype: Any, samples: int) -> int:
        if kind in FREE or dtype in (tf.resource, tf.variant, tf.string):
            return 0
        lengths = self._lengths(shape, samples)
        return 0 if lengths is None else math.prod(lengths) * dtype.size

    def _lengths(self, shape: Any, samples: int) -> list[int] | None:
        """A shape on this many samples."""
        if shape.rank is None:
            return None
        lengths: list[int] = []
        for axis, length in enumerate(shape.as_list()):
            if axis == 0 and (length is None or length == self._samples):
                length = samples
            elif length is None:
                length = 1  # nobody knows; the first step that runs will tell
            elif axis == 0 and self._samples > 1 and length % self._samples == 0:
                # Flattened with another axis, as before a dense layer over a sequence.
                length = length // self._samples * samples
            lengths.append(length)
        return lengths


def with_shapes(graph: Any, data: Any, first: int = 1) -> Any:
    """A function's graph with the shapes of a batch, where some were open when it was traced.

    Args:
        graph: The graph.
        data: The batch.
        first: The first axis that may not be open: 1 leaves the number of samples open, 0 not.
    """
    tensors = [tensor for op in graph.get_operations() for tensor in op.outputs]
    if not any(tensor.shape.rank and None in tensor.shape.as_list()[first:] for tensor in tensors):
        return graph
    captured = {id(inner): inner for _, inner in graph.captures}
    given = [tensor for tensor in graph.inputs if id(tensor) not in captured]
    leaves = tf.nest.flatten(data, expand_composites=True)
    if len(given) != len(leaves):
        return graph
    shaped = tf.Graph()
    try:
        with shaped.as_default():
            places = {}
            for tensor, leaf in zip(given, leaves, strict=True):
                places[tensor.name] = tf.compat.v1.placeholder(tensor.dtype, leaf.shape)
            for tensor in captured.values():
                place = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
                handle_data_util.copy_handle_data(tensor, place)  # the shapes of variables
                places[tensor.name] = place
            # TensorFlow works the shapes out anew for each op that it takes in.
            tf.graph_util.import_graph_def(graph.as_graph_def(), input_map=places, name="")
    except (ValueError, tf.errors.OpError):
        return graph
    return shaped


class _Op:
    """What is kept of an op of the graph."""

    def __init__(self, op: Any) -> None:
        self.name: str = op.name
        self.kind: str = op.type
        self.outputs = [(tensor.name, tensor.shape, tensor.dtype) for tensor in op.outputs]
        self.inputs = tuple(tensor.name for tensor in op.inputs)
