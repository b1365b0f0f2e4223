"""Memory that TensorFlow's CPU kernels take while they run and that no graph shows.

Read off the kernels' own formulas: a max pooling's gradient finds its maxima again and keeps their
places, a convolution's gradients lay out patches of a shard of the batch. Those of a convolution
over volumes do so only where that takes no more than 26 times the memory of the tensors they are
given, which is from some batch size on.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.graph.axes import lengths_at
from legroom.core.graphs import NO_SCRATCH, Scratch

__all__ = ["WITH_SCRATCH", "later_scratch", "scratch_bytes", "scratch_of"]

_Shape = Sequence[int]

_FROM_A_SIZE = {"Conv3DBackpropFilterV2", "Conv3DBackpropInputV2"}
WITH_SCRATCH = {"MaxPoolGrad", "Conv2DBackpropFilter", "Conv2DBackpropInput", *_FROM_A_SIZE}
# What the kernels of flat convolutions take a processor's caches for, whatever they are.
_LAST_CACHE = 30 * 2**20
_SECOND_CACHE = 256 * 2**10
# Those of convolutions over volumes ask the processor; this is for one that does not tell.
_UNKNOWN_CACHE = 512 * 2**10
_SC_LEVEL3_CACHE_SIZE = 194  # glibc's; Python has no name for it
# The patches of volumes may take this many times of what the op's tensors take.
_MOST_OVERHEAD = 25
# Between these batch sizes it is looked for where an op's scratch begins.
_FEWEST, _MOST_SAMPLES = 2, 2**24


def scratch_bytes(kind: str, shapes: Sequence[_Shape], output: _Shape, itemsize: int) -> int:
    """The scratch of one op on the CPU.

    Args:
        kind: The op's type.
        shapes: Its inputs' shapes.
        output: Its first output's shape.
        itemsize: The bytes of one entry.
    """
    if len(shapes) != 3:
        return 0
    if kind == "MaxPoolGrad":
        return math.prod(shapes[1]) * 8  # the places of the maxima
    if kind == "Conv2DBackpropFilter" and len(output) == 4:
        return _patches(output, shapes[2], itemsize, in_parts=True)
    if kind == "Conv2DBackpropInput" and len(shapes[1]) == 4:
        return _patches(shapes[1], shapes[2], itemsize, in_parts=False)
    if kind == "Conv3DBackpropFilterV2" and len(output) == 5:
        return _volume_patches(output, shapes[0], shapes[2], itemsize, in_parts=True)
    if kind == "Conv3DBackpropInputV2" and len(shapes[1]) == 5:
        in_parts = shapes[2][:1] != [1]
        return _volume_patches(shapes[1], output, shapes[2], itemsize, in_parts=in_parts)
    return 0


def scratch_of(op: Any) -> Scratch:
    """What an op of a traced graph takes while it runs, at any batch size."""
    shapes = [tensor.shape for tensor in (*op.inputs, op.outputs[0])]
    if any(shape.rank is None for shape in shapes):
        return NO_SCRATCH
    known = [shape.as_list() for shape in shapes]
    itemsize = op.outputs[0].dtype.size

    def at(samples: int) -> int:
        *given, made = (lengths_at(shape, samples) for shape in known)
        return scratch_bytes(op.type, given, made, itemsize)

    first = _first_with_scratch(at)
    if first is None:
        return NO_SCRATCH
    one, many = at(first), at(2 * first)
    each = (many - one) / first
    return Scratch(max(0.0, one - first * each), each, first if first > _FEWEST else 0)


def later_scratch(graph: Any) -> dict[str, Scratch]:
    """What ops of a graph take from some batch size on, by their names: a probe does not see it."""
    found = {op.name: scratch_of(op) for op in graph.get_operations() if op.type in _FROM_A_SIZE}
    return {name: scratch for name, scratch in found.items() if scratch.since}


def _first_with_scratch(at: Callable[[int], int]) -> int | None:
    """The smallest batch size at which there is any."""
    first = _FEWEST
    while at(first) == 0:
        first *= 2
        if first > _MOST_SAMPLES:
            return None
    low = first // 2
    while first > _FEWEST and first - low > 1:
        middle = (low + first) // 2
        low, first = (low, middle) if at(middle) else (middle, first)
    return first


def _patches(kernel: _Shape, gradient: _Shape, itemsize: int, *, in_parts: bool) -> int:
    """The buffer of patches of a convolution's gradient, channels last.

    Args:
        kernel: The kernel's shape.
        gradient: The shape of what comes back from the output.
        itemsize: The bytes of one entry.
        in_parts: Whether the work is always split by samples, or only where one is little work.
    """
    if len(gradient) != 4:
        return 0
    patches, unit = _unit(kernel, gradient)
    if unit == 0:
        return 0
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
    if not in_parts and unit // threads >= _SECOND_CACHE // itemsize:
        return patches * itemsize
    return -(-(_LAST_CACHE // itemsize) // unit) * patches * itemsize


def _volume_patches(
    kernel: _Shape, given: _Shape, gradient: _Shape, itemsize: int, *, in_parts: bool
) -> int:
    """The same of a convolution over volumes, whose input or its gradient has shape `given`."""
    if len(given) != 5 or len(gradient) != 5:
        return 0
    patches, unit = _unit(kernel, gradient)
    if unit == 0:
        return 0
    buffer = -(-(_third_cache() // itemsize) // unit) * patches if in_parts else patches
    tensors = math.prod(given) + math.prod(kernel) + math.prod(gradient)
    return buffer * itemsize if buffer // tensors <= _MOST_OVERHEAD else 0


def _unit(kernel: _Shape, gradient: _Shape) -> tuple[int, int]:
    """For one sample, the entries of its patches and of all matrices that are multiplied."""
    places, patch = math.prod(gradient[1:-1]), math.prod(kernel[:-1])
    return places * patch, places * patch + places * kernel[-1] + patch * kernel[-1]


@functools.cache
def _third_cache() -> int:
    """The processor's last cache, as Eigen reads it off the processor.

    So does glibc, up to 2.38 at least. On AMD's processors later ones, as the kernel, may tell of
    one of several such caches.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return _UNKNOWN_CACHE
    try:
        return max(0, os.sysconf(_SC_LEVEL3_CACHE_SIZE)) or _UNKNOWN_CACHE
    except (OSError, ValueError, AttributeError):
        return _UNKNOWN_CACHE
