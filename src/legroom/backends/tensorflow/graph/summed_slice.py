"""A step on a slice of a batch, for predictions: its gradients are added up, and not applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.commit.collect import Applied, collecting, inner_variable

__all__ = ["add_up"]


def add_up(call: Callable[[Any], Any], slices: float, sums: list[Any], data: Any) -> Any:
    """Run a step up to its gradients, and add them to sums as `updates.Update` does.

    Args:
        call: The step.
        slices: How many slices the batch has; a part of one more counts as a part.
        sums: Where the variables that the gradients are added to are put.
        data: The slice.
    """
    with collecting(lambda applied: sums.extend(_added(applied, slices))):
        return call(data)


def _added(applied: Applied, slices: float) -> Iterator[Any]:
    for gradient, variable in zip(applied.gradients, applied.variables, strict=True):
        if gradient is None:
            continue
        value = inner_variable(variable)
        if isinstance(gradient, tf.IndexedSlices):
            yield _kept_rows(gradient, value, slices)
        else:
            share = tf.constant(1 / max(1.0, slices), gradient.dtype)
            sums = _sum(value.shape, value.dtype)
            sums.assign_add(tf.cast(gradient * share, value.dtype))
            yield sums


def _kept_rows(gradient: Any, table: Any, slices: float) -> Any:
    """Of a sparse gradient all rows are kept, or two tables of their sums if those are less."""
    values = gradient.values
    rows = min(round(slices * (values.shape[0] or 1)), 2 * table.shape[0])
    kept = _sum([rows, *table.shape[1:]], values.dtype)
    kept.scatter_add(tf.IndexedSlices(values, gradient.indices))
    return kept


def _sum(shape: Any, dtype: Any) -> Any:
    with tf.init_scope():
        return tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False)
