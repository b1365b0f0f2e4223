"""One optimizer's part in a sliced step: its accumulated gradients and their commit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops

from legroom.backends.tensorflow.commit.born_outside import born_outside
from legroom.backends.tensorflow.commit.collect import Applied, inner_variable
from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.commit.units import adds_rows_up, works_in_units
from legroom.backends.tensorflow.effects.variables import Snapshot, written_handles
from legroom.backends.tensorflow.effects.write_log import WriteLog, logging_writes, unlogged
from legroom.backends.tensorflow.slices.row_sums import RowSums
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.errors import UnlikeBeforeError

__all__ = ["Update"]


class Update:
    """Adds up the gradients that a step's slices hand to one `apply`, and applies them once.

    Args:
        traits: How the step is traced.
        rows: What its sparse gradients have rows for; see `Rules`.
    """

    def __init__(self, traits: Traits, rows: Sequence[str | None] = ()) -> None:
        self._traits = traits
        self._rows = rows
        self._optimizer: Any = None
        self._call: Applied | None = None
        self._variables: list[Any] = []
        self._kinds: list[str] = []
        self._sums: dict[int, Any] = {}
        self._row_sums: dict[int, RowSums] = {}
        self._sparse: list[list[Any]] = []
        self._committer: Committer | None = None
        self._commit: Any = None
        self._old: Snapshot | None = None
        self._log: WriteLog | None = None
        self._new: list[Any] = []

    @property
    def handles(self) -> list[Any]:
        """The accumulators' own variables, which no snapshot needs to hold."""
        own = [sum_.handle for sum_ in self._sums.values()] + [new.handle for new in self._new]
        return own + [handle for sums in self._row_sums.values() for handle in sums.handles]

    def accumulate(self, call: Applied, weight: Any, slices: int) -> list[Any]:
        """Add a slice's gradients, in a graph or eagerly.

        Args:
            call: The `apply` that was caught.
            weight: The slice's share; None where the gradients are sums.
            slices: How many slices the batch has, about.

        Returns:
            Sparse gradients that are kept as they are: sums for an embedding are as large as its
            table, and often a batch has fewer rows.
        """
        self._meet(call, slices)
        sparse: list[Any] = []
        with unlogged():
            for i, gradient in enumerate(call.gradients):
                if gradient is None:
                    continue
                if isinstance(gradient, tf.IndexedSlices):
                    values = _weighted(gradient.values, weight)
                    if i in self._row_sums:
                        self._row_sums[i].add(values, gradient.indices)
                        continue
                    sparse.append(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))
                else:
                    gradient = tf.cast(gradient, self._sums[i].dtype)
                    self._sums[i].assign_add(_weighted(gradient, weight))
        return sparse

    def clear(self) -> None:
        """Before a step: nothing is added up yet."""
        self._sparse = []
        self._old = None
        # One after another: all the zeros at once would be another copy of the gradients.
        for sum_ in self._sums.values():
            _put(sum_, tf.zeros(sum_.shape, sum_.dtype))
        for rows in self._row_sums.values():
            rows.clear()

    def add_sparse(self, sparse: list[Any]) -> None:
        """Keep a slice's sparse gradients."""
        if sparse:
            self._sparse.append(sparse)

    def commit(self, saved: Any) -> BaseException | None:
        """Apply what was added up.

        Args:
            saved: What to put back if it ends before anything is written.

        Returns:
            What interrupted it, where it was completed all the same.
        """
        gradients = self._gradients()
        if self._committer is None:
            self._apply_kept(gradients)
            self.settle()
            return None
        try:
            self._committer.update(gradients, saved)
        except BaseException as error:
            if not self._committer.complete:
                raise
            return error
        return None

    def commit_for_now(self) -> None:
        """Apply what was added up, so that it can be taken back until the step is through.

        Where it runs out of memory half-way, it is not completed: whoever takes it back has the old
        values, and completing it by hand, with next to nothing free, can end the process.
        """
        gradients = self._gradients()
        if self._committer is None:
            self._apply_kept(gradients)
            return
        self._old = self._state()
        self._committer.begin_update(gradients)

    def keep_new(self) -> None:
        """After a commit for now: let later passes see old and new values in turn."""
        for new, variable in zip(self._shadows(), self._variables, strict=True):
            _put(new, inner_variable(variable).value())

    def take_back(self) -> None:
        """Undo a commit that was for now."""
        if self._log is not None:
            self._log.restore()
        if self._old is not None:
            self._old.restore()
        self.settle()

    def settle(self) -> None:
        """The step is through: nothing will be taken back."""
        self._old = self._log = None

    def show_old(self) -> None:
        """Before a slice of a later pass: the variables as they were before this apply."""
        assert self._old is not None
        self._old.restore_first(len(self._variables))

    def show_new(self) -> None:
        """In a later pass, at this apply: the variables as they are after it."""
        with unlogged():
            for new, variable in zip(self._shadows(), self._variables, strict=True):
                inner_variable(variable).assign(new.value())

    def empty(self) -> None:
        """Free the accumulators' memory until the next step, but keep what was traced with them."""
        sums = [variable for rows in self._row_sums.values() for variable in rows.variables]
        for variable in (*self._sums.values(), *sums, *self._new):
            _put(variable, tf.zeros([], variable.dtype))

    def release(self) -> None:
        """Free all memory; the next step makes it anew."""
        self.__init__(self._traits, self._rows)  # type: ignore[misc]

    def _meet(self, call: Applied, slices: int) -> None:
        """Make the accumulators when the first gradients are seen."""
        if self._optimizer is not None:
            known = [id(inner_variable(variable)) for variable in self._variables]
            if self._optimizer is not call.optimizer or known != [
                id(inner_variable(variable)) for variable in call.variables
            ]:
                raise UnlikeBeforeError(
                    "it applied another optimizer, or other variables, than before"
                )
            if len(self._sums) == self._kinds.count("dense"):
                return
        self._optimizer = call.optimizer
        self._call = dataclasses.replace(call, gradients=[])
        self._variables = call.variables
        self._kinds = [
            "none" if g is None else "sparse" if isinstance(g, tf.IndexedSlices) else "dense"
            for g in call.gradients
        ]
        with born_outside():
            for i, kind in enumerate(self._kinds):
                if kind == "dense" and i not in self._sums:
                    value = inner_variable(call.variables[i])
                    with tf.device(value.device):
                        self._sums[i] = tf.Variable(
                            tf.zeros(value.shape, value.dtype), trainable=False
                        )
            self._sum_rows(call, slices)
            if works_in_units(call.optimizer):
                self._committer = Committer(
                    call.optimizer, call.variables, self._traits, self._row_sums
                )
            else:
                self._commit = self._traits.function(self._original)

    def _sum_rows(self, call: Applied, slices: int) -> None:
        """Make tables for sparse gradients where those take less memory than all the rows."""
        takes = functools.cache(lambda: adds_rows_up(call.optimizer))
        for i, gradient in enumerate(call.gradients):
            if not isinstance(gradient, tf.IndexedSlices):
                continue
            value, rows = inner_variable(call.variables[i]), gradient.values.shape[0]
            if i < len(self._rows) and self._rows[i] == "entries":
                self._row_sums[i] = RowSums(value, ())
            elif rows is not None and slices * rows > value.shape[0]:
                taken = takes()
                if taken is not None and slices * rows > (1 + len(taken)) * value.shape[0]:
                    self._row_sums[i] = RowSums(value, taken)
            if i in self._row_sums:
                self._kinds[i] = "row sums"

    def _shadows(self) -> list[Any]:
        """Variables that hold the new values while the step's own hold the old ones."""
        if not self._new:
            with tf.init_scope():
                self._new = [
                    tf.Variable(inner_variable(v).value(), trainable=False) for v in self._variables
                ]
        return self._new

    def _gradients(self) -> list[Any]:
        parts = [iter(group) for group in zip(*self._sparse, strict=True)]
        groups = iter(parts)
        gradients: list[Any] = []
        for i, kind in enumerate(self._kinds):
            if kind == "none" or (kind == "row sums" and self._committer is not None):
                gradients.append(None)  # a committer has the sums of rows itself
            elif kind == "row sums":
                gradients.append(self._row_sums[i].gradient())
            elif kind == "dense":
                gradients.append(self._sums[i].value())
            else:
                pieces = list(next(groups))
                gradients.append(
                    tf.IndexedSlices(
                        tf.concat([piece.values for piece in pieces], 0),
                        tf.concat([piece.indices for piece in pieces], 0),
                        pieces[0].dense_shape,
                    )
                )
        return gradients

    def _original(self, gradients: Any) -> None:
        placed = []
        for gradient, variable in zip(gradients, self._variables, strict=True):
            # A distribution strategy asks each gradient where it lies.
            with tf.device(inner_variable(variable).device):
                placed.append(None if gradient is None else tf.identity(gradient))
        assert self._call is not None
        self._call.carry_out(placed)

    def _apply_kept(self, gradients: list[Any]) -> None:
        """For optimizers whose update can't go in units: with the old state kept.

        What such an optimizer writes need not be its own: it may have another one inside.
        """
        try:
            if self._traits.eager:
                self._old, self._log = self._state(), WriteLog()
                self._traits.run(self._logged, gradients)
            else:
                graph = self._commit.get_concrete_function(gradients).graph
                self._old = self._state(written_handles(graph))
                self._commit(gradients)
        except BaseException:
            self.take_back()
            raise

    def _logged(self, gradients: Any) -> None:
        with logging_writes(self._log):
            self._original(gradients)

    def _state(self, more: Sequence[Any] = ()) -> Snapshot:
        variables = [*self._variables, *self._optimizer.variables]
        handles = [inner_variable(variable).handle for variable in variables]
        return Snapshot({id(handle): handle for handle in [*handles, *more]}.values())


def _put(variable: Any, value: Any) -> None:
    """Give an accumulator a value, of whatever shape; a variable's own `assign` looks at that."""
    gen_resource_variable_ops.assign_variable_op(variable.handle, value)


def _weighted(gradient: Any, weight: Any) -> Any:
    return gradient if weight is None else gradient * tf.cast(weight, gradient.dtype)
