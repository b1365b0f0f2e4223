"""Applying finished gradients so that the update happens wholly or not at all.

Keras's `apply` needs scratch memory and moves a variable's slots before the variable itself: out
of memory in the middle leaves a model that no training would give. Here the update goes in units,
one call after the other, and the gradients of a unit are free when it is done. A unit is a large
variable, written in place and each write counted (see `in_turn`), or a few variables whose new
values are all computed first and written after (see `overlay`). The unit that needs most memory
goes first: where it fits, the others do. So an update fails at its very start, with nothing
written, or (someone else took memory meanwhile, the user interrupts) at a known place, with the
gradients still there from which it is finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import global_norm
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from legroom.backends.tensorflow import oom
from legroom.backends.tensorflow.collect import Applied, inner_variable
from legroom.backends.tensorflow.effects import on_host, undone_by
from legroom.backends.tensorflow.in_place import updates_in_place, write_in_place
from legroom.backends.tensorflow.in_turn import InTurn, can_stop_between
from legroom.backends.tensorflow.overlay import Overlay
from legroom.backends.tensorflow.row_sums import RowSums, taken_of_rows
from legroom.backends.tensorflow.traits import Traits
from legroom.backends.tensorflow.writes import logging_writes

__all__ = ["Committer", "adds_rows_up", "works_in_units"]

# Variables are joined to units up to this size, or up to the largest variable where that is more:
# a unit for every bias would only add overhead.
_SMALL_UNIT = 4 * 2**20
# From this size on a variable that can be updated in place is a unit.
_LARGE = 2**20
# How far an update is, in one number: so much for each unit that is done, and one for each write
# in the unit after them.
_UNIT = 1000

# Keras's own that update each variable by itself, whatever comes before or after it. Others keep
# state that all variables share (Nadam, ScheduleFreeAdamW), or decay in their own manner (Muon).
_BY_VARIABLE = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Ftrl", "Lamb",
                "Lion", "Adafactor")  # fmt: skip
# What a class of the user's own may override without changing what an update is.
_HARMLESS = frozenset({"__init__", "build", "get_config", "from_config"})


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
    if any(getattr(v, "overwrite_with_gradient", False) for v in inner._trainable_variables):
        return False
    if not _updates_by_variable(inner):
        return False
    return not isinstance(inner._distribution_strategy, tf.distribute.MirroredStrategy)


def _updates_by_variable(optimizer: Any) -> bool:
    """Whether all that makes up the update is Keras's own, and known to be one of each variable."""
    known = [getattr(keras.optimizers, name, None) for name in _BY_VARIABLE]
    kinds = type(optimizer).__mro__
    of_keras = next((i for i, kind in enumerate(kinds) if kind in known), None)
    if of_keras is None:
        return False
    inherited = set(dir(kinds[of_keras])) - _HARMLESS
    methods = {name for name in inherited if callable(getattr(kinds[of_keras], name))}
    own = {name for kind in kinds[:of_keras] for name in vars(kind)}
    ordinary = {"__module__", "__doc__", "__qualname__", "__firstlineno__",
                "__static_attributes__", "_api_export_path", "_api_export_symbol_id"}  # fmt: skip
    return not (own & inherited) - ordinary and not methods & set(vars(optimizer))


def adds_rows_up(optimizer: Any) -> tuple[str, ...] | None:
    """What to add up of a sparse gradient's rows; None where the rows must be kept as they are."""
    if not works_in_units(optimizer) or optimizer is not _inner(optimizer):
        return None
    if optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue:
        return None  # clipping looks at the rows
    return None if optimizer.loss_scale_factor else taken_of_rows(optimizer)


@dataclasses.dataclass(frozen=True)
class _Unit:
    """Variables that are written in one call.

    Attributes:
        members: The variables, by their places.
        in_turn: Whether it is one variable, written in place. Else all new values are computed
            beside the old ones and then written at once.
    """

    members: list[int]
    in_turn: bool = False


@dataclasses.dataclass(frozen=True)
class _Update:
    """The functions that write one update.

    Attributes:
        units: In their order.
        run: What writes each of them.
        share: Computes what the units need to know of all gradients together, if they do.
    """

    units: list[_Unit]
    run: list[Any]
    share: Any


class Committer:
    """Writes the update of one optimizer and its variables.

    Args:
        optimizer: The optimizer, built.
        variables: The Keras variables, in the order in which gradients will come.
        traits: How the step is traced; an eager step's update runs eagerly too.
        sums: By the variable's place, sparse gradients that come as sums of rows: there is no
            gradient for these in what is committed.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[Any],
        traits: Traits,
        sums: Mapping[int, RowSums] | None = None,
    ) -> None:
        self._outer = optimizer
        self._traits = traits
        self._sums = sums or {}
        self._optimizer = _inner(optimizer)
        known = {self._optimizer._var_key(v): v for v in self._optimizer._trainable_variables}
        self._variables = [known[self._optimizer._var_key(v)] for v in variables]
        self._sizes = [_bytes(variable) for variable in self._variables]
        self._kernels = self._with_kernel()
        self._in_turn = self._writable_in_turn()
        self._updates: dict[Any, _Update] = {}  # by the variables with a gradient, and its kind
        self._current: _Update | None = None
        self._shared: Any = None
        self._progress = tf.Variable(0, dtype=tf.int32, trainable=False, name="legroom_progress")

    def is_for(self, call: Applied) -> bool:
        """Whether a caught `apply` is of this optimizer and these variables."""
        mine = [id(v._value) for v in self._variables]
        return self._outer is call.optimizer and mine == [
            id(inner_variable(v)) for v in call.variables
        ]

    @property
    def state_bytes(self) -> int:
        """The variables and the optimizer's own state."""
        return sum(_bytes(v) for v in [*self._variables, *self._outer.variables])

    @property
    def held_bytes(self) -> int:
        """What the gradients of all variables take, and the scratch to apply them."""
        units = [unit for update in self._updates.values() for unit in update.units]
        units = units or self._units(range(len(self._variables)), ())
        return sum(self._sizes) + max(map(self._scratch, units), default=0)

    def prepare(self, gradients: Sequence[Any]) -> list[Any]:
        """Trace the update for gradients like these.

        Returns:
            The graphs that will run, one after the other.
        """
        update = self._begin(gradients)
        graphs, shared = [], None
        if update.share is not None:
            traced = update.share.get_concrete_function(gradients)
            shared = traced.structured_outputs
        for unit, run in zip(update.units, update.run, strict=True):
            own = [gradients[i] for i in unit.members]
            graphs.append(run.get_concrete_function((own, shared)).graph)
        return graphs

    def update(self, gradients: list[Any], saved: Any = None) -> None:
        """Write the update, wholly or not at all.

        Args:
            gradients: One for each variable, None where there is none. The list is emptied on the
                way: whoever keeps gradients elsewhere keeps their memory.
            saved: What to put back (the step's other writes) if nothing is written.
        """
        failure: BaseException | None = None
        try:
            self.begin_update(gradients)
            return
        except BaseException as error:
            if self._written == 0:
                if saved is not None:
                    saved.restore()
                raise
            if not isinstance(error, Exception):
                failure = error  # an interrupt; what fails for another reason fails again, below
        # Some units are written: the update must be completed, whatever the reason is. An
        # out-of-memory error is dropped here, past its except block, so that what its traceback
        # holds is free.
        gc.collect()
        self._finish(gradients)
        if failure is not None:
            raise failure

    def begin_update(self, gradients: list[Any]) -> None:
        """Write the update, and stop where it fails: the caller undoes it.

        Args:
            gradients: As for `update`.
        """
        self._progress.assign(0)
        self._current = update = self._begin(gradients)
        self._shared = None if update.share is None else update.share(gradients)
        for unit, run in zip(update.units, update.run, strict=True):
            self._run_unit(run, [gradients[i] for i in unit.members])
            for i in unit.members:
                gradients[i] = None

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
        units = self._units(self._present(gradients), ())
        everything = _Unit([i for unit in units for i in unit.members])
        given = [gradients[i] for i in everything.members]
        shared = self._share(gradients)
        if not self._scales:
            return [self._write_beside(everything, given, shared, last=True, after=(barrier,))]
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        # A barrier outside of a branch holds the whole branch back; it can't be named inside.
        with tf.control_dependencies([barrier]):
            self._if_finite(
                shared, lambda: self._write_beside(everything, given, shared, last=True), last=True
            )
        return [op for op in graph.get_operations()[before:] if op.type in ("If", "StatelessIf")]

    @property
    def _written(self) -> int:
        """How far the last update came; see `_UNIT`."""
        return int(self._progress.numpy())

    @property
    def complete(self) -> bool:
        """Whether the last update was written wholly, whatever was raised after it."""
        return self._current is not None and self._written == len(self._current.units) * _UNIT

    @property
    def _scales(self) -> bool:
        return isinstance(self._outer, LossScaleOptimizer)

    def _finish(self, gradients: list[Any]) -> None:
        """Complete an update that stopped half-way, with as little memory as can be.

        The gradients wait in host memory, one unit at a time comes back to the device.

        Raises:
            OutOfMemory: If that is not possible; nobody may take the step for one that did not
                happen.
        """
        assert self._current is not None
        update, units = self._current, self._current.units
        for i, gradient in enumerate(gradients):
            gradients[i] = _to_host(gradient)
        gc.collect()
        done, writes = divmod(self._written, _UNIT)
        for number, unit in list(enumerate(units))[done:]:
            run = update.run[number] if not writes else self._runner(number, units, writes)
            oom.insist(
                functools.partial(self._run_unit, run, [gradients[i] for i in unit.members]),
                f"Memory ran out in the middle of an update: {number} of {len(units)} groups of "
                "weights are updated and the others are not. Load the last checkpoint or snapshot "
                "before you train on.",
            )
            writes = 0

    def _run_unit(self, run: Callable[[Any], Any], gradients: list[Any]) -> None:
        if not self._traits.eager:
            run((gradients, self._shared))
            return
        # Written one by one here: an interrupt must not fall between them. Old values that are
        # kept until then take the memory that the new ones took before they were written.
        with logging_writes() as log:
            undone_by(log, functools.partial(run, (gradients, self._shared)))

    def _begin(self, gradients: Sequence[Any]) -> _Update:
        """The functions that write an update with gradients like these."""
        present = self._present(gradients)
        in_turn = tuple(i for i in self._in_turn if isinstance(gradients[i], tf.Tensor))
        kind = present, in_turn
        if kind not in self._updates:
            units = self._units(present, in_turn)
            shares = self._scales or self._optimizer.global_clipnorm
            self._updates[kind] = _Update(
                units,
                [self._runner(number, units) for number in range(len(units))],
                self._function(self._share) if shares else None,
            )
        return self._updates[kind]

    def _runner(self, number: int, units: Sequence[_Unit], skip: int = 0) -> Any:
        """What writes a unit, but for so many writes of it."""
        last = number == len(units) - 1
        return self._function(functools.partial(self._unit, number, units[number], last, skip))

    def _function(self, body: Any) -> Any:
        return body if self._traits.eager else self._traits.function(body)

    def _with_kernel(self) -> frozenset[int]:
        """The large variables that one op can update, if their gradients are dense."""
        return frozenset(
            i for i in self._large() if updates_in_place(self._optimizer, self._variables[i])
        )

    def _writable_in_turn(self) -> tuple[int, ...]:
        """The large variables that can be written in place, if their gradients are dense."""
        large = self._large()
        ranks = {len(self._variables[i].shape) for i in large if i not in self._kernels}
        able = {rank for rank in ranks if can_stop_between(self._optimizer, rank)}
        return tuple(
            i for i in large if i in self._kernels or len(self._variables[i].shape) in able
        )

    def _large(self) -> list[int]:
        if self._traits.eager:
            return []
        return [i for i, size in enumerate(self._sizes) if size >= _LARGE and i not in self._sums]

    def _present(self, gradients: Sequence[Any]) -> tuple[int, ...]:
        present = tuple(
            i for i, gradient in enumerate(gradients) if gradient is not None or i in self._sums
        )
        if not present:
            raise ValueError("No gradients provided for any variable.")
        return present

    def _units(self, present: Sequence[int], in_turn: Sequence[int]) -> list[_Unit]:
        """What is written, in its order."""
        units = [_Unit([i], in_turn=True) for i in in_turn]
        beside = [i for i in present if i not in in_turn]
        units += [_Unit(members) for members in _grouped(beside, self._sizes)]
        units.sort(key=lambda unit: -self._scratch(unit))
        without_gradient = [i for i in range(len(self._variables)) if i not in present]
        if self._averages() and without_gradient:
            units.append(_Unit(without_gradient))
        return units

    def _scratch(self, unit: _Unit) -> int:
        """About how much memory it needs to be written."""
        size = sum(self._sizes[i] for i in unit.members)
        if not unit.in_turn:
            slots = sum(_bytes(v) for v in self._optimizer.variables) / max(1, sum(self._sizes))
            return int((2 + slots) * size)  # the new values and something temporary
        if unit.members[0] in self._kernels:
            return 2 * size if self._prepares else 0
        return 3 * size if self._prepares else 2 * size

    @property
    def _prepares(self) -> bool:
        """Whether gradients are scaled or clipped before they are applied, or weights decay."""
        inner = self._optimizer
        clips = inner.clipnorm or inner.global_clipnorm or inner.clipvalue
        return bool(clips or self._scales or inner.loss_scale_factor or inner.weight_decay)

    def _share(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """What all units need to know of all gradients together."""
        shared: dict[str, Any] = {}
        gradients = [
            self._sums[i].gradient() if i in self._sums else gradient
            for i, gradient in enumerate(gradients)
        ]
        if self._scales:
            shared["finite"] = self._outer.check_finite(gradients)
        if self._optimizer.global_clipnorm:
            norm = global_norm([None if g is None else self._unscaled(g) for g in gradients])
            # Keras's own scale, as it comes out for a gradient that is the norm itself.
            clipped = self._optimizer._clip_gradients([tf.reshape(norm, (1,))])[0][0]
            shared["clip"] = tf.where(norm == 0, tf.ones_like(norm), clipped / norm)
        return shared

    def _unit(self, number: int, unit: _Unit, last: bool, skip: int, given: Any) -> None:
        """Write one unit, in a graph or eagerly."""
        gradients, shared = given

        def write() -> None:
            if unit.in_turn:
                self._write_in_turn(unit, gradients, shared, number=number, last=last, skip=skip)
            else:
                self._write_beside(unit, gradients, shared, number=number, last=last)

        if self._scales:
            self._if_finite(shared, write, number=number, last=last)
        else:
            write()

    def _if_finite(
        self, shared: Any, write: Callable[[], Any], *, number: int | None = None, last: bool
    ) -> None:
        """Under a dynamic loss scale, a step with overflown gradients only lowers the scale."""

        def wrote() -> None:
            write()

        def left() -> None:
            if last:
                self._outer._stateful_handle_non_finite_grads()
            if number is not None:
                self._progress.assign((number + 1) * _UNIT)

        ops.cond(shared["finite"], wrote, left)

    def _write_beside(
        self,
        unit: _Unit,
        gradients: Sequence[Any],
        shared: Any,
        *,
        number: int | None = None,
        last: bool,
        after: Sequence[Any] = (),
    ) -> Any:
        """Write a unit at once; returns the op after which nothing can fail."""
        with Overlay(self._optimizer) as overlay:
            self._write(unit, gradients, shared, last)
        written = overlay.write(after)
        if number is not None:
            with tf.control_dependencies(written):
                self._progress.assign((number + 1) * _UNIT, read_value=False)
        return overlay.ready

    def _write_in_turn(
        self,
        unit: _Unit,
        gradients: Sequence[Any],
        shared: Any,
        *,
        number: int,
        last: bool,
        skip: int,
    ) -> None:
        """Write a unit in place, but for so many writes that are done."""

        def tell(writes: int) -> Any:
            return self._progress.assign(number * _UNIT + writes, read_value=False)

        # Room for all of it is asked for, and given back, before the update begins: the other units
        # need less, and have the gradients' memory of those before them.
        begins = number == 0 and not skip
        # (In rows of a megabyte: a dimension is a number of 32 bits.)
        shape = [self._scratch(unit) // 2**20, 2**20]
        room = [tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)] if begins else []
        with tf.control_dependencies(room), InTurn(self._optimizer, skip, tell) as turn:
            self._write(unit, gradients, shared, last, turn)
        with tf.control_dependencies(turn.told):
            tell(_UNIT)

    def _write(
        self,
        unit: _Unit,
        gradients: Sequence[Any],
        shared: Any,
        last: bool,
        turn: InTurn | None = None,
    ) -> None:
        """What Keras's `apply` does to the variables of a unit, in its order.

        All of it goes through the optimizer's own `assign`, `assign_add` and `assign_sub`.
        """
        optimizer, averaged = self._optimizer, self._averages()
        rate = optimizer.learning_rate
        for i, gradient in zip(unit.members, gradients, strict=True):
            variable = self._variables[i]
            if i in self._sums:
                gradient = self._sums[i].gradient()
            if gradient is not None:
                self._decay(variable)
                gradient = self._prepared(gradient, shared)
                if turn is not None and i in self._kernels:
                    turn.write(
                        functools.partial(write_in_place, optimizer, variable, gradient, rate)
                    )
                else:
                    with self._sums[i].shown() if i in self._sums else contextlib.nullcontext():
                        optimizer.update_step(gradient, variable, rate)
            if i in averaged:
                moved = ops.cast(ops.not_equal(optimizer.iterations, 0), variable.dtype)
                momentum = moved * optimizer.ema_momentum
                average = momentum * averaged[i] + (1 - momentum) * variable
                optimizer.assign(averaged[i], average)
            if gradient is not None and variable.constraint is not None:
                optimizer.assign(variable, variable.constraint(variable))
        if last:
            if self._scales:
                self._count_finite_step()
            optimizer.assign_add(optimizer._iterations, 1)

    def _unscaled(self, gradient: Any) -> Any:
        if isinstance(self._outer, LossScaleOptimizer):
            gradient = ops.divide(gradient, self._outer.dynamic_scale)
        factor = self._optimizer.loss_scale_factor
        return gradient if factor is None else gradient / factor

    def _prepared(self, gradient: Any, shared: Any) -> Any:
        """Unscaling and clipping, of one gradient at a time."""
        gradient = self._unscaled(gradient)
        if self._optimizer.global_clipnorm:
            return gradient * shared["clip"]
        return self._optimizer._clip_gradients([gradient])[0]

    def _decay(self, variable: Any) -> None:
        """Weight decay as Keras has it on TensorFlow."""
        optimizer = self._optimizer
        # What is left out may be named by a part of TensorFlow's name for it, which has the path.
        if optimizer.weight_decay is None or not optimizer._use_weight_decay(variable._value):
            return
        rate = ops.cast(optimizer.learning_rate, variable.dtype)
        decay = ops.cast(optimizer.weight_decay, variable.dtype)
        optimizer.assign_sub(variable, variable * decay * rate)

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
        outer, write = self._outer, self._optimizer.assign
        full = ops.equal(outer.step_counter, outer.dynamic_growth_steps - 1)
        # The scale first: what the counter was tells what becomes of it.
        write(outer.dynamic_scale, ops.where(full, outer.dynamic_scale * 2.0, outer.dynamic_scale))
        write(outer.step_counter, ops.where(full, 0, outer.step_counter + 1))


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def _grouped(members: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Small variables together, large ones by themselves."""
    room = max([_SMALL_UNIT, *(sizes[i] for i in members)])
    groups: list[list[int]] = []
    filled = 0
    for i in sorted(members, key=lambda i: -sizes[i]):
        if not groups or filled + sizes[i] > room:
            groups.append([])
            filled = 0
        groups[-1].append(i)
        filled += sizes[i]
    return groups


def _to_host(gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            on_host(gradient.values), on_host(gradient.indices), gradient.dense_shape
        )
    return on_host(gradient)


def _bytes(variable: Any) -> int:
    value = inner_variable(variable)
    return int(np.prod(value.shape)) * value.dtype.size
