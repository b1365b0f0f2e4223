"""Sparse gradients added up in tables, where keeping every row would take more memory.

The gradient of an embedding has a row for every token of the batch, several of them for the same
entry of the table. Keras's optimizers add the rows of an entry up, but not before everything else:
Adam adds up the squares of the rows, which is not the square of their sum. So a sum of the rows
alone is another update. What an optimizer does take of the rows (the sum, the sum of squares, the
sum of magnitudes) is found by giving it a small gradient twice, once as rows and once as sums, and
comparing; each of these sums over the slices has a table of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops

from legroom.backends import patches
from legroom.backends.tensorflow.commit.rehearsal import same_after

__all__ = ["RowSums", "taken_of_rows"]

# What an optimizer may take of a row before the rows are added up, beside the row itself. All have
# Keras's names and map zero to zero, as a row that isn't there must be.
_TAKES: dict[str, Callable[[Any], Any]] = {"square": tf.square, "abs": tf.abs}


class RowSums:
    """The sums over the rows of one variable's sparse gradient.

    Args:
        variable: TensorFlow's variable that the gradient is for.
        takes: What the optimizer takes of each row; see `taken_of_rows`.
    """

    def __init__(self, variable: Any, takes: tuple[str, ...]) -> None:
        self._shape = variable.shape
        with tf.device(variable.device):
            self._sums = {
                take: tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
                for take in ("rows", *takes)
            }

    @property
    def handles(self) -> list[Any]:
        """The variables that hold the sums."""
        return [sum_.handle for sum_ in self._sums.values()]

    def clear(self) -> None:
        """Nothing is added up yet."""
        for sum_ in self._sums.values():
            gen_resource_variable_ops.assign_variable_op(
                sum_.handle, tf.zeros(sum_.shape, sum_.dtype)
            )

    @property
    def variables(self) -> list[Any]:
        """The variables that hold the sums."""
        return list(self._sums.values())

    def add(self, values: Any, indices: Any) -> None:
        """Add rows, in a graph or eagerly."""
        for take, sum_ in self._sums.items():
            taken = values if take == "rows" else _TAKES[take](values)
            sum_.scatter_add(tf.IndexedSlices(tf.cast(taken, sum_.dtype), indices))

    def gradient(self) -> tf.IndexedSlices:
        """A gradient with one row for each entry of the table."""
        return _with_all_rows(self._sums["rows"].value(), self._shape)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Whoever takes the square of a sparse gradient is given the sum of squares."""
        sums = {take: sum_.value() for take, sum_ in self._sums.items() if take != "rows"}
        with _answering(sums.get):
            yield


def taken_of_rows(optimizer: Any) -> tuple[str, ...] | None:
    """What this optimizer takes of the rows of a sparse gradient before it adds them up.

    Returns:
        Names for `RowSums`; None where sums do not give the optimizer's own update.
    """
    asked: dict[str, None] = {}
    indices = np.array([2, 0, 2, 2, 0, 1])  # of the rows

    def by_rows(copy: Any, variable: Any, rows: Any, rate: float) -> None:
        shape = tf.constant(variable.shape)
        gradient = tf.IndexedSlices(tf.constant(rows), tf.constant(indices), shape)
        copy.update_step(gradient, variable, rate)

    def by_sums(copy: Any, variable: Any, rows: Any, rate: float) -> None:
        def table(taken: Any) -> Any:
            return tf.math.unsorted_segment_sum(taken, indices, variable.shape[0])

        def answer(take: str) -> Any:
            asked[take] = None
            return table(_TAKES[take](rows))

        with _answering(answer):
            copy.update_step(_with_all_rows(table(rows), variable.shape), variable, rate)

    same = same_after(optimizer, by_rows, by_sums, rows=len(indices))
    return tuple(asked) if same else None


def _with_all_rows(table: Any, shape: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(table, tf.range(shape[0]), tf.constant(list(shape)))


@contextlib.contextmanager
def _answering(answer: Callable[[str], Any]) -> Iterator[None]:
    """Keras's functions of a sparse gradient are answered with the sums of that function."""
    with contextlib.ExitStack() as hooks:
        for take in _TAKES:
            answered = functools.partial(_answered, take, answer)
            hooks.enter_context(
                patches.replaced("keras.src.backend.tensorflow.numpy", take, answered)
            )
        yield


def _answered(
    take: str, answer: Callable[[str], Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        sums = answer(take) if isinstance(x, tf.IndexedSlices) else None
        return original(x) if sums is None else tf.IndexedSlices(sums, x.indices, x.dense_shape)

    return call
