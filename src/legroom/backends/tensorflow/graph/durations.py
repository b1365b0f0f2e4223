"""About how long ops take: where several threads run them, that decides who overtakes whom."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from legroom.backends.tensorflow.graph.axes import lengths_at
from legroom.core.graphs import TIMED_AT

__all__ = ["work_of"]


def work_of(op: Any) -> float:
    """How long an op takes beside reading and writing, in the time of a byte."""
    known = _KINDS.get(op.type)
    if known is None or any(tensor.shape.rank is None for tensor in (*op.inputs, *op.outputs)):
        return 0.0
    count, each = known
    return count(op) * each


def _lengths(tensor: Any) -> list[int]:
    return lengths_at(tensor.shape.as_list(), TIMED_AT)


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


def _flat_to_filter(op: Any) -> float:
    """A product, for which the patches at all places are laid out first.

    By itself it takes a third of the time that laying them out is given here; beside another op,
    which is when times count, it was seen to be overtaken more often than that.
    """
    places = math.prod(_lengths(op.inputs[2])[:-1])
    return 0.18 * _to_filter(op) + 36 * places * _patch(op, op.outputs[0])


def _patch(op: Any, kernel: Any) -> float:
    """What an entry of the result is made of."""
    return math.prod(_lengths(kernel)[: -2 if "Depthwise" in op.type else -1])


def _made(op: Any) -> float:
    return _entries(op.outputs[0])


# What is counted, and how long each takes, as measured on two cores without oneDNN.
_KINDS: dict[str, tuple[Callable[[Any], float], float]] = {
    "MatMul": (_product, 0.2),
    "BatchMatMulV2": (_product, 0.2),
    "BatchMatMulV3": (_product, 0.2),
    "Einsum": (_einsum, 0.2),
    "Conv2D": (_convolution, 0.2),
    "Conv3D": (_convolution, 0.2),
    "DepthwiseConv2dNative": (_convolution, 0.2),
    "Conv2DBackpropInput": (_to_input, 0.3),
    "Conv3DBackpropInputV2": (_to_input, 0.3),
    "DepthwiseConv2dNativeBackpropInput": (_to_input, 0.3),
    "Conv2DBackpropFilter": (_flat_to_filter, 1.0),
    "Conv3DBackpropFilterV2": (_to_filter, 0.75),
    "DepthwiseConv2dNativeBackpropFilter": (_to_filter, 0.75),
    "MaxPoolGrad": (_made, 40.0),
}
