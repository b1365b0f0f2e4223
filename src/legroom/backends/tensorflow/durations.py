"""About how long ops take: where several threads run them, that decides who overtakes whom."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from legroom.backends.tensorflow.axes import axes_of
from legroom.core.graphs import TIMED_AT

__all__ = ["work_of"]

# Multiplications that take as long as a byte that is read or written.
_A_BYTE = 4.0


def work_of(op: Any) -> float:
    """How long an op takes beside reading and writing, in the time of a byte."""
    count = _MULTIPLICATIONS.get(op.type)
    if count is None or any(tensor.shape.rank is None for tensor in (*op.inputs, *op.outputs)):
        return 0.0
    return count(op) / _A_BYTE


def _lengths(tensor: Any) -> list[float]:
    return [fixed + each * TIMED_AT for fixed, each in axes_of(tensor.shape.as_list())]


def _entries(tensor: Any) -> float:
    return math.prod(_lengths(tensor))


def _product(op: Any) -> float:
    turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _entries(op.outputs[0]) * _lengths(op.inputs[0])[-2 if turned else -1]


def _einsum(op: Any) -> float:
    lengths: dict[str, float] = {}
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    for term, tensor in zip(terms, op.inputs, strict=True):
        # An ellipsis stands for axes that both have.
        for name, length in zip(reversed(term), reversed(_lengths(tensor)), strict=False):
            lengths[name] = length
    return math.prod(lengths.values())


def _convolution(op: Any) -> float:
    return _entries(op.outputs[0]) * _patch(op, op.inputs[1])


def _to_input(op: Any) -> float:
    return _entries(op.inputs[2]) * _patch(op, op.inputs[1])


def _to_filter(op: Any) -> float:
    return _entries(op.inputs[2]) * _patch(op, op.outputs[0])


def _patch(op: Any, kernel: Any) -> float:
    """What an entry of the result is made of."""
    return math.prod(_lengths(kernel)[: -2 if "Depthwise" in op.type else -1])


_MULTIPLICATIONS: dict[str, Callable[[Any], float]] = {
    "MatMul": _product,
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _convolution,
    "Conv2DBackpropInput": _to_input,
    "Conv3DBackpropInputV2": _to_input,
    "DepthwiseConv2dNativeBackpropInput": _to_input,
    "Conv2DBackpropFilter": _to_filter,
    "Conv3DBackpropFilterV2": _to_filter,
    "DepthwiseConv2dNativeBackpropFilter": _to_filter,
}
