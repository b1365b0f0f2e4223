"""A step made comparable: the same noise for every sample, BatchNorm by its moving statistics.

To see whether a step gives the same gradients whole and in slices, what legitimately differs has
to be held still. Random draws are replaced by ones that depend on the position within a sample
only; BatchNorm layers use their moving statistics, and are noted by name, because they do couple
the samples of a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from legroom.backends.tensorflow.shadow import replaced

__all__ = ["STATEFUL_DRAWS", "Seen", "neutral"]


class Seen:
    """What was noticed while a step ran neutralised.

    Attributes:
        noise_shapes: The shape of every random draw, in order.
        batch_norms: Names of the BatchNorm layers that would have used the batch's statistics.
    """

    def __init__(self) -> None:
        self.noise_shapes: list[tuple[int, ...]] = []
        self.batch_norms: list[str] = []


@contextlib.contextmanager
def neutral() -> Iterator[Seen]:
    """Run what is inside with per-sample noise and BatchNorm held still."""
    seen = Seen()
    with contextlib.ExitStack() as stack:
        for module, names in _DRAWS.items():
            for name, (shape_at, kind) in names.items():
                original = getattr(module, name, None)
                if original is not None:
                    stack.enter_context(
                        replaced(module, name, _drawing(original, shape_at, kind, seen))
                    )
        layer = keras.layers.BatchNormalization
        stack.enter_context(replaced(layer, "call", _still(layer.call, seen)))
        yield seen


# Where the low-level ops take their shape, and what they draw; for whole numbers, where they take
# the smallest one.
_DRAWS: dict[Any, dict[str, tuple[int, str | int]]] = {
    gen_random_ops: {
        "random_standard_normal": (0, "normal"),
        "truncated_normal": (0, "normal"),
        "random_uniform": (0, "uniform"),
        "random_uniform_int": (0, 1),
    },
    gen_stateless_random_ops: {
        "stateless_random_normal": (0, "normal"),
        "stateless_truncated_normal": (0, "normal"),
        "stateless_random_uniform": (0, "uniform"),
        "stateless_random_uniform_int": (0, 2),
    },
    gen_stateless_random_ops_v2: {
        "stateless_random_normal_v2": (0, "normal"),
        "stateless_truncated_normal_v2": (0, "normal"),
        "stateless_random_uniform_v2": (0, "uniform"),
        "stateless_random_uniform_int_v2": (0, 4),
    },
    gen_stateful_random_ops: {
        "stateful_standard_normal_v2": (2, "normal"),
        "stateful_truncated_normal": (2, "normal"),
        "stateful_uniform": (2, "uniform"),
        "stateful_uniform_int": (2, 3),
    },
}

# Those whose next draw is another one, whatever they are given: module and name.
STATEFUL_DRAWS = [
    (module, name)
    for module in (gen_random_ops, gen_stateful_random_ops)
    for name in _DRAWS[module]
    if hasattr(module, name)
]


def _drawing(
    original: Callable[..., Any], shape_at: int, kind: str | int, seen: Seen
) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        given = args[shape_at] if len(args) > shape_at else kwargs["shape"]
        if not tf.executing_eagerly():
            return original(*args, **kwargs)
        shape = tuple(int(length) for length in np.array(given).reshape(-1))
        dtype = original(*args, **kwargs).dtype
        source = np.random.RandomState(len(seen.noise_shapes))
        seen.noise_shapes.append(shape)
        inner = shape[1:] if shape else ()
        if kind == "normal":
            noise = source.standard_normal(inner)
        elif isinstance(kind, str):
            noise = source.uniform(size=inner)
        else:
            lowest = args[kind] if len(args) > kind else kwargs["minval"]
            noise = np.full(inner, int(lowest))
        return tf.cast(tf.broadcast_to(tf.constant(noise), shape), dtype)

    return draw


def _still(original: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if training and self.trainable and self.name not in seen.batch_norms:
            seen.batch_norms.append(self.name)
        return original(self, inputs, training=False, mask=mask)

    return call
