"""Variables that are made while a step is traced, as if it was not.

A `tf.function` that makes variables is traced twice. Slots of optimizers, sums of gradients and
counts are made while a step is traced, because only then it is known which ones are needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

__all__ = ["born_outside"]


@contextlib.contextmanager
def born_outside() -> Iterator[None]:
    """Make variables outside of the function that is being traced, and unknown to it."""
    with tf.init_scope(), _unseen() if _is_alone() else contextlib.nullcontext():
        yield


def _unseen() -> Any:
    def create(make: Any, **options: Any) -> Any:
        del make  # the function's own way to make variables, which notes them
        return resource_variable_ops.default_variable_creator_v2(**options)

    return tf.variable_creator_scope(create)


def _is_alone() -> bool:
    """Whether nobody but the traced function wants to make variables in a manner of its own."""
    graph = ops.get_default_graph()
    stacks = [
        getattr(one, "_variable_creator_stack", ())
        for one in (graph, getattr(graph, "outer_graph", None))
    ]
    names = [getattr(make, "__qualname__", "") for stack in stacks for _, make in stack]
    # The strategy that is there when there is none only looks on.
    others = [name for name in names if not name.startswith("_DefaultDistributionContext.")]
    only_function = len(others) == 1 and others[0].startswith("Function.")
    return only_function and not tf.distribute.has_strategy()
