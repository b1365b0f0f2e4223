"""Memory that TensorFlow's CPU kernels take while they run and that no graph shows.

Read off the kernels' own formulas: a max pooling's gradient finds its maxima again and keeps their
places, a convolution's gradients lay out patches of a shard of the batch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import tensorflow as tf

__all__ = ["scratch_bytes"]

_Shape = Sequence[int]

# What the kernels of convolutions take a processor's caches for, whatever they are.
_LAST_CACHE = 30 * 2**20
_SECOND_CACHE = 256 * 2**10


def scratch_bytes(kind: str, shapes: Sequence[_Shape], output: _Shape, itemsize: int) -> int:
    """The scratch of one op on the CPU.

    Args:
        kind: The op's type.
        shapes: Its inputs' shapes.
        output: Its first output's shape.
        itemsize: The bytes of one entry.
    """
    if kind == "MaxPoolGrad" and len(shapes) == 3:
        return math.prod(shapes[1]) * 8  # the places of the maxima
    if kind == "Conv2DBackpropFilter" and len(shapes) == 3 and len(output) == 4:
        return _patches(output, shapes[2], itemsize, in_parts=True)
    if kind == "Conv2DBackpropInput" and len(shapes) == 3 and len(shapes[1]) == 4:
        return _patches(shapes[1], shapes[2], itemsize, in_parts=False)
    return 0


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
    places = gradient[1] * gradient[2]
    patch = kernel[0] * kernel[1] * kernel[2]
    unit = places * patch + places * kernel[3] + patch * kernel[3]
    if unit == 0:
        return 0
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count() or 1
    if not in_parts and unit // threads >= _SECOND_CACHE // itemsize:
        return places * patch * itemsize
    return -(-(_LAST_CACHE // itemsize) // unit) * places * patch * itemsize
