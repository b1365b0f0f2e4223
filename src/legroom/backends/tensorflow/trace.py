"""The ops of a traced step, with the bytes each makes at a given number of samples."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from legroom.predict.timeline import Peak, TracedOp, find_peak

__all__ = ["StepTrace"]

# Ops whose output is their input's memory.
_PASS_ON = {
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "ReadVariableOp",
    "PreventGradient", "CheckNumerics", "EnsureShape",
}  # fmt: skip
# Elementwise ops, which write over their first input where nobody else needs it.
_REUSE = {
    "Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Tanh", "Sigmoid", "Softplus", "BiasAdd", "AddV2",
    "Sub", "Mul", "RealDiv", "Square", "Sqrt", "Rsqrt", "Exp", "Neg", "ReluGrad", "Relu6Grad",
    "TanhGrad", "SigmoidGrad", "EluGrad", "AddN", "Maximum", "Minimum", "Erf", "Softmax",
    "LeakyReluGrad",
}  # fmt: skip
_FREE = {"Placeholder", "Const", "NoOp", "Shape", "Size", "Rank", "VarHandleOp"}


class StepTrace:
    """A step's graph, as a function of how many samples it runs on.

    Args:
        graph: The traced graph.
        samples: The number of samples it was traced for; dimensions that are open stand for the
            number of samples as well.
    """

    def __init__(self, graph: Any, samples: int) -> None:
        self._samples = samples
        self._kept = [tensor.name for tensor in graph.outputs]
        self._peaks: dict[int, Peak] = {}
        self._ops = [
            (op.name, op.type, [(t.name, t.shape, t.dtype) for t in op.outputs], _inputs(op))
            for op in graph.get_operations()
        ]

    def peak(self, samples: int) -> Peak:
        """The peak of the step on this many samples."""
        if samples not in self._peaks:
            ops = [
                TracedOp(
                    name,
                    tuple((tensor, self._bytes(kind, shape, dtype, samples))
                          for tensor, shape, dtype in outputs),
                    inputs,
                    passes_on=kind in _PASS_ON,
                    may_reuse=kind in _REUSE,
                )
                for name, kind, outputs, inputs in self._ops
            ]  # fmt: skip
            self._peaks[samples] = find_peak(ops, self._kept)
        return self._peaks[samples]

    def need(self, samples: int) -> int:
        """The bytes that the step needs beyond what is in use before it."""
        return self.peak(samples).live_bytes

    def kept_bytes(self, samples: int) -> int:
        """The bytes of what the step hands on when it is through."""
        kept = set(self._kept)
        return sum(
            self._bytes("", shape, dtype, samples)
            for _, _, outputs, _ in self._ops
            for name, shape, dtype in outputs
            if name in kept
        )

    def _bytes(self, kind: str, shape: Any, dtype: Any, samples: int) -> int:
        if kind in _FREE or shape.rank is None or dtype in (tf.resource, tf.variant, tf.string):
            return 0
        count = 1
        for axis, length in enumerate(shape.as_list()):
            if length is None or (axis == 0 and length == self._samples):
                length = samples
            elif axis == 0 and self._samples > 1 and length % self._samples == 0:
                # Flattened with another axis, as before a dense layer over a sequence.
                length = length // self._samples * samples
            count *= length
        return count * dtype.size


def _inputs(op: Any) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in op.inputs)
