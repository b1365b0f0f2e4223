"""Applying finished gradients so that the update happens wholly or not at all.

Keras's `apply` needs scratch memory and moves a variable's slots before the variable itself: out
of memory in the middle leaves a model that no training would give. Here the update goes in units
of a few variables. Within a unit all new values are computed first and written after, and writing
needs no memory; units follow each other, so the scratch is that of one unit; and a counter tells
how many are done. The largest unit goes first: where it fits, the others do. So a commit fails at
its very start, with nothing written, or (someone else took memory meanwhile) at a known place
from which it is finished unit by unit.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import StatelessScope, ops
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from legroom.backends.tensorflow import oom
from legroom.backends.tensorflow.collect import Applied, inner_variable
from legroom.backends.tensorflow.row_sums import RowSums, taken_of_rows
from legroom.backends.tensorflow.shadow import shadowed

__all__ = ["Committer", "adds_rows_up", "state_bytes", "works_in_units"]

# Variables are joined to units up to this size, or up to the largest variable where that is more:
# a unit for every bias would only add overhead.
_SMALL_UNIT = 4 * 2**20

# What `apply` is made of. An optimizer that overrides one of these does something between the
# variables that units would not do.
_PARTS = ("apply", "_backend_apply_gradients", "_backend_update_step", "_clip_gradients")


def works_in_units(optimizer: Any) -> bool:
    """Whether this optimizer's update is one of variables, each by itself."""
    inner = _inner(optimizer)
    if not isinstance(inner, TFOptimizer) or inner.gradient_accumulation_steps:
        return False
    if inner.use_ema and inner.ema_overwrite_frequency:
        return False
    if type(optimizer) is not LossScaleOptimizer and optimizer is not inner:
        return False
    if not all(isinstance(variable, Variable) for variable in inner._trainable_variables):
        return False  # TensorFlow's own variables, which no overlay sees
    for part in _PARTS:
        owner = next(kind for kind in type(inner).__mro__ if part in vars(kind))
        if owner not in (BaseOptimizer, TFOptimizer):
            return False
    return not isinstance(inner._distribution_strategy, tf.distribute.MirroredStrategy)


def adds_rows_up(optimizer: Any) -> tuple[str, ...] | None:
    """What to add up of a sparse gradient's rows; None where the rows must be kept as they are."""
    if not works_in_units(optimizer) or optimizer is not _inner(optimizer):
        return None
    if optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue:
        return None  # clipping looks at the rows
    return None if optimizer.loss_scale_factor else taken_of_rows(optimizer)


def state_bytes(optimizer: Any, variables: Sequence[Any]) -> int:
    """The bytes of the variables and of the optimizer's own state."""
    return sum(_bytes(variable) for variable in [*variables, *optimizer.variables])


class Committer:
    """Writes the update of one optimizer and its variables.

    Args:
        optimizer: The optimizer, built.
        variables: The Keras variables, in the order in which gradients will come.
        sums: By the variable's place, sparse gradients that come as sums of rows: there is no
            gradient for these in what is committed.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[Any], sums: Mapping[int, RowSums] | None = None
    ) -> None:
        self._outer = optimizer
        self._sums = sums or {}
        self._optimizer = _inner(optimizer)
        known = {self._optimizer._var_key(v): v for v in self._optimizer._trainable_variables}
        self._variables = [known[self._optimizer._var_key(v)] for v in variables]
        self._units = _in_units([_bytes(variable) for variable in self._variables])
        self._progress = tf.Variable(0, dtype=tf.int32, trainable=False, name="legroom_progress")

    def is_for(self, call: Applied) -> bool:
        """Whether a caught `apply` is of this optimizer and these variables."""
        mine = [id(v._value) for v in self._variables]
        return self._outer is call.optimizer and mine == [
            id(inner_variable(v)) for v in call.variables
        ]

    @property
    def done(self) -> int:
        """How many units of the commit that failed were written."""
        return int(self._progress.numpy())

    def reset(self) -> None:
        """Before a commit: nothing is written yet."""
        self._progress.assign(0)

    def update(self, gradients: Sequence[Any]) -> None:
        """Write the update unit by unit, in a graph or eagerly.

        Args:
            gradients: One for each variable; None where there is none.
        """
        self._if_finite(gradients, lambda: self._run(gradients, 0))

    def update_at_once(self, gradients: Sequence[Any], barrier: Any) -> list[Any]:
        """Write the update in one piece, in a graph.

        Everything is computed before anything is written, so this can't stop half-way. It needs
        scratch as large as the whole state: for small models.

        Args:
            gradients: One for each variable; None where there is none.
            barrier: The op after which writing may begin.

        Returns:
            The ops after which nothing is left that could fail.
        """
        if not self._scales:
            return self._write_all(gradients, (barrier,))
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())

        def write() -> None:
            self._write_all(gradients, ())

        # A barrier outside of a branch holds the whole branch back; it can't be named inside.
        self._if_finite(gradients, write, after=(barrier,))
        return [op for op in graph.get_operations()[before:] if op.type in ("If", "StatelessIf")]

    @property
    def _scales(self) -> bool:
        return isinstance(self._outer, LossScaleOptimizer)

    def _if_finite(
        self, gradients: Sequence[Any], write: Callable[[], None], after: Sequence[Any] = ()
    ) -> None:
        """Under a dynamic loss scale, a step with overflown gradients only lowers the scale."""
        if not self._scales:
            write()
            return
        with tf.control_dependencies(after):
            ops.cond(
                self._outer.check_finite(self._with_sums(gradients)),
                write,
                self._outer._stateful_handle_non_finite_grads,
            )

    def _write_all(self, gradients: Sequence[Any], after: Sequence[Any]) -> list[Any]:
        units, update = self._parts(gradients)
        with _Overlay(self._optimizer) as overlay:
            update([i for unit in units for i in unit], last=True)
            if self._scales:
                self._count_finite_step()
        overlay.write(after)
        return [overlay.ready]

    def finish(self, gradients: Sequence[Any]) -> None:
        """Complete a commit that stopped half-way, with as little memory as can be.

        The gradients wait in host memory, one unit at a time comes back to the device.
        """
        done = self.done
        on_host = [_to_host(gradient) for gradient in gradients]
        del gradients
        gc.collect()
        for number in range(done, self._count(on_host)):
            for patience in (0.0, 1.0, 5.0, 20.0, None):
                try:
                    self._run(on_host, number, only=True)
                    break
                except tf.errors.OpError as error:
                    if patience is None or not oom.is_oom(error):
                        raise
                gc.collect()
                time.sleep(patience)

    def _count(self, gradients: Sequence[Any]) -> int:
        return len(self._parts(gradients)[0])

    def _run(self, gradients: Sequence[Any], first: int, *, only: bool = False) -> None:
        units, update = self._parts(gradients)
        before: list[Any] = []
        for number, unit in enumerate(units):
            if number < first or (only and number > first):
                continue
            last = number == len(units) - 1
            with tf.control_dependencies(before):
                with _Overlay(self._optimizer) as overlay:
                    update(unit, last=last)
                    if last and self._scales:
                        self._count_finite_step()
                written = overlay.write()
            with tf.control_dependencies(written):
                mark = self._progress.assign(number + 1, read_value=False)
            before = [] if mark is None else [mark]

    def _with_sums(self, gradients: Sequence[Any]) -> list[Any]:
        return [
            self._sums[i].gradient() if i in self._sums else gradient
            for i, gradient in enumerate(gradients)
        ]

    def _parts(self, gradients: Sequence[Any]) -> tuple[list[list[int]], Callable[..., None]]:
        """The update as a list of units, and a function that computes one of them."""
        optimizer = self._optimizer
        gradients = self._with_sums(gradients)
        present = {i for i, gradient in enumerate(gradients) if gradient is not None}
        if not present:
            raise ValueError("No gradients provided for any variable.")
        prepare = self._preparation(gradients)
        averaged = self._averages()
        units = [[i for i in unit if i in present] for unit in self._units]
        units = [unit for unit in units if unit]
        without_gradient = [i for i in range(len(gradients)) if i not in present]
        if averaged and without_gradient:
            units.append(without_gradient)

        def update(unit: list[int], *, last: bool) -> None:
            rate = optimizer.learning_rate
            for i in unit:
                self._update_one(i, gradients[i], prepare, rate, averaged)
            if last:
                optimizer._iterations.assign_add(1)

        return units, update

    def _update_one(
        self, i: int, gradient: Any, prepare: Any, rate: Any, averaged: dict[int, Any]
    ) -> None:
        """What Keras's `apply` does for one variable, in its order."""
        optimizer, variable = self._optimizer, self._variables[i]
        if gradient is not None:
            # The base class's decay goes through the Keras variable, which the overlay sees;
            # TensorFlow's own writes to the device at once.
            BaseOptimizer._apply_weight_decay(optimizer, [variable])
            sums = self._sums.get(i)
            with contextlib.nullcontext() if sums is None else sums.shown():
                optimizer.update_step(prepare(i, gradient), variable, rate)
        average = averaged.get(i)
        if average is not None:
            moved = ops.cast(ops.not_equal(optimizer.iterations, 0), variable.dtype)
            momentum = moved * optimizer.ema_momentum
            average.assign(momentum * average + (1 - momentum) * variable)
        if gradient is not None and variable.constraint is not None:
            variable.assign(variable.constraint(variable))

    def _preparation(self, gradients: Sequence[Any]) -> Callable[[int, Any], Any]:
        """Unscaling and clipping, of one gradient at a time wherever that is possible."""
        optimizer, outer = self._optimizer, self._outer
        factor = optimizer.loss_scale_factor

        def unscale(gradient: Any) -> Any:
            if isinstance(outer, LossScaleOptimizer):
                gradient = ops.divide(gradient, outer.dynamic_scale)
            return gradient if factor is None else gradient / factor

        if not optimizer.global_clipnorm:
            return lambda i, gradient: optimizer._clip_gradients([unscale(gradient)])[0]
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        clipped = optimizer._clip_gradients([unscale(gradients[i]) for i in present])
        by_index = dict(zip(present, clipped, strict=True))
        return lambda i, gradient: by_index[i]

    def _averages(self) -> dict[int, Any]:
        """The moving average of each variable that has one."""
        if not self._optimizer.use_ema:
            return {}
        averages = self._optimizer._model_variables_moving_average
        index = self._optimizer._get_variable_index
        return {
            i: averages[index(variable)]
            for i, variable in enumerate(self._variables)
            if averages[index(variable)] is not None
        }

    def _count_finite_step(self) -> None:
        """The loss scale's own bookkeeping after a step with finite gradients."""
        outer = self._outer
        full = ops.equal(outer.step_counter, outer.dynamic_growth_steps - 1)
        scale = ops.where(full, outer.dynamic_scale * 2.0, outer.dynamic_scale)
        outer.step_counter.assign(ops.where(full, 0, outer.step_counter + 1))
        outer.dynamic_scale.assign(scale)


class _Overlay(StatelessScope):
    """Collects what an optimizer writes, shows it to later reads, and writes it in the end."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer
        # Averages and constraints read a variable after its update.
        self._read_on = optimizer.use_ema or any(
            variable.constraint is not None for variable in optimizer._trainable_variables
        )
        self._updates: dict[int, tuple[Any, Any]] = {}
        self._scatters: list[tuple[str, Any, Any]] = []
        self.ready: Any = None  # when all is computed that will be written

    def add_update(self, update: tuple[Any, Any]) -> None:
        super().add_update(update)
        variable, value = update
        self._updates[id(variable)] = (variable, value)

    def __enter__(self) -> _Overlay:
        super().__enter__()
        self._hooks = contextlib.ExitStack()
        for name in ("assign", "assign_add", "assign_sub"):
            self._hooks.enter_context(shadowed(self._optimizer, name, self._writer(name)))
        # A variable's key must stay that of the variable, also when its new value is shown here.
        key = self._optimizer._var_key
        self._hooks.enter_context(
            shadowed(
                self._optimizer,
                "_var_key",
                lambda v: key(v._value if isinstance(v, Variable) else v),
            )
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _writer(self, name: str) -> Callable[[Any, Any], None]:
        def write(variable: Any, value: Any) -> None:
            if isinstance(value, tf.IndexedSlices):
                if name != "assign" and id(variable) not in self._updates and not self._read_on:
                    self._scatters.append((name, variable, value))
                    return
                # What is read again in this unit must be there as a whole.
                value = tf.convert_to_tensor(value)
            current = variable.value if name != "assign" else None
            value = tf.cast(value, variable.dtype)
            if name == "assign_add":
                value = current + value
            elif name == "assign_sub":
                value = current - value
            variable.assign(value)

        return write

    def write(self, after: Sequence[Any] = ()) -> list[Any]:
        """Write everything that was collected; nothing here needs memory.

        Args:
            after: Ops of the graph that must have run before.
        """
        values = [value for _, value in self._updates.values()]
        values += [part for *_, value in self._scatters for part in (value.values, value.indices)]
        with tf.control_dependencies([*after, *(v for v in values if isinstance(v, tf.Tensor))]):
            self.ready = tf.no_op()  # None where it is not in a graph
        with tf.control_dependencies([] if self.ready is None else [self.ready]):
            written = _assign(list(self._updates.values()))
            for name, variable, value in self._scatters:
                scatter = getattr(variable.value, name.replace("assign", "scatter"))
                written.append(scatter(tf.cast(value, variable.dtype)))
        return [op for op in written if op is not None]


def _assign(updates: list[tuple[Any, Any]]) -> list[Any]:
    written = [
        variable._value.assign(tf.cast(value, variable._value.dtype), read_value=False)
        for variable, value in updates
    ]
    return [op for op in written if op is not None]


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def _in_units(sizes: Sequence[int]) -> list[list[int]]:
    """Group variables: the largest first, small ones together."""
    room = max([_SMALL_UNIT, *sizes])
    units: list[list[int]] = []
    filled = 0
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if not units or filled + sizes[i] > room:
            units.append([])
            filled = 0
        units[-1].append(i)
        filled += sizes[i]
    return units


def _to_host(gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            np.array(gradient.values), np.array(gradient.indices), gradient.dense_shape
        )
    return np.array(gradient)


def _bytes(variable: Any) -> int:
    value = inner_variable(variable)
    return int(np.prod(value.shape)) * value.dtype.size
