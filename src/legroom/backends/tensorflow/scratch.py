"""Memory that TensorFlow's CPU kernels take while they run and that no graph shows.

Read off the kernels' own formulas: a max pooling's gradient finds its maxima again and keeps their
places, a convolution's gradients lay out patches of a shard of the batch, sized by the cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path

__all__ = ["scratch_bytes"]

_Shape = Sequence[int]

# Above this ratio of scratch to what the op reads and writes, TensorFlow takes another kernel.
_MOST_OVERHEAD = 25


def scratch_bytes(kind: str, shapes: Sequence[_Shape], output: _Shape, itemsize: int) -> int:
    """The scratch of one op on the CPU.

    Args:
        kind: The op's type.
        shapes: Its inputs' shapes.
        output: Its first output's shape.
        itemsize: The bytes of one entry.
    """
    if kind == "MaxPoolGrad" and len(shapes) == 3:
        return math.prod(shapes[1]) * (itemsize + 8)  # the pooled values again, and their places
    if kind == "Conv2DBackpropFilter" and len(shapes) == 3 and len(output) == 4:
        return _patches(output, shapes[0], shapes[2], itemsize)
    if kind == "Conv2DBackpropInput" and len(shapes) == 3 and len(shapes[1]) == 4:
        return _patches(shapes[1], output, shapes[2], itemsize)
    return 0


def _patches(kernel: _Shape, image: _Shape, gradient: _Shape, itemsize: int) -> int:
    """The buffer of patches of a convolution's gradient, channels last."""
    if len(gradient) != 4 or len(image) != 4:
        return 0
    places = gradient[1] * gradient[2]
    patch = kernel[0] * kernel[1] * kernel[2]
    unit = places * patch + places * kernel[3] + patch * kernel[3]
    if unit == 0:
        return 0
    shard = -(-(_last_level_cache() // itemsize) // unit)
    entries = shard * places * patch
    touched = math.prod(image) + math.prod(kernel) + math.prod(gradient)
    return entries * itemsize if entries // max(1, touched) <= _MOST_OVERHEAD else 0


@functools.cache
def _last_level_cache() -> int:
    """The size of the last cache, as TensorFlow's kernels see it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return 2**20 * 2  # what Eigen takes where it can't tell
