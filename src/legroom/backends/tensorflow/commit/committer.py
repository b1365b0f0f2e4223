"""Applying finished gradients so that the update happens wholly or not at all.

Keras's `apply` needs scratch memory and moves a variable's slots before the variable itself: out
of memory in the middle leaves a model that no training would give. Here the update goes in units.
A unit is a large variable, written in place and each write counted (see `in_turn`), or a few
variables whose new values are all computed first and written after (see `overlay`). The unit that
needs most memory goes first: where it fits, the others do. So an update fails at its very start,
with nothing written, or (someone else took memory meanwhile, the user interrupts) at a known place,
with the gradients still there from which it is finished.

Units with dense gradients are written in one call, one after the other: a call of its own for each
would free its gradients, but they all have to fit beside the first one anyway.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras import ops

from legroom.backends.keras.models.known_optimizers import inner_optimizer
from legroom.backends.keras.models.reading import variable_bytes
from legroom.backends.tensorflow.commit.collect import Applied, inner_variable
from legroom.backends.tensorflow.commit.in_turn import InTurn
from legroom.backends.tensorflow.commit.overlay import Overlay
from legroom.backends.tensorflow.commit.partial_apply import PartialApply
from legroom.backends.tensorflow.commit.units import Unit, Units
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.effects.variables import on_host, undone_by
from legroom.backends.tensorflow.effects.write_log import logging_writes
from legroom.backends.tensorflow.slices.row_sums import RowSums
from legroom.backends.tensorflow.step.traits import Traits

__all__ = ["Committer"]

# How far an update is, in one number: so much for each unit that is done, and one for each write
# in the unit after them.
_UNIT = 1000


@dataclasses.dataclass(frozen=True)
class _Call:
    """What writes some units, and the places of all their variables."""

    members: list[int]
    run: Any


@dataclasses.dataclass(frozen=True)
class _Update:
    """The functions that write one update.

    Attributes:
        units: In their order.
        calls: What writes them, in the same order.
        share: Computes what the units need to know of all gradients together, if they do.
    """

    units: list[Unit]
    calls: list[_Call]
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
        self._optimizer = inner_optimizer(optimizer)
        known = {self._optimizer._var_key(v): v for v in self._optimizer._trainable_variables}
        self._variables = [known[self._optimizer._var_key(v)] for v in variables]
        self._apply = PartialApply(optimizer, self._variables, self._sums)
        # An eager step's update is logged as a whole, and undone where it fails.
        beside = range(len(self._variables)) if traits.eager else self._sums
        self._units = Units(optimizer, self._variables, beside)
        self._updates: dict[Any, _Update] = {}  # by who has a gradient, and a dense one
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
        return sum(variable_bytes(v) for v in [*self._variables, *self._outer.variables])

    @property
    def held_bytes(self) -> int:
        """What the gradients of all variables take, and the scratch to apply them."""
        units = [unit for update in self._updates.values() for unit in update.units]
        units = units or self._units.beside(range(len(self._variables)))
        weights = sum(variable_bytes(v) for v in self._variables)
        return weights + max(map(self._units.scratch, units), default=0)

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
        for call in update.calls:
            own = [gradients[i] for i in call.members]
            graphs.append(call.run.get_concrete_function((own, shared)).graph)
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
        for call in update.calls:
            self._run_call(call.run, [gradients[i] for i in call.members])
            for i in call.members:
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
        present = self._present(gradients)
        everything = Unit([*present, *self._only_averaged(present)])
        given = [gradients[i] for i in everything.members]
        shared = self._apply.share(gradients)
        if not self._apply.scales:
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

    def _finish(self, gradients: list[Any]) -> None:
        """Complete an update that stopped half-way, with as little memory as can be.

        The gradients wait in host memory, one unit at a time comes back to the device.

        Raises:
            OutOfMemoryError: If that is not possible; nobody may take the step for one that did not
                happen.
        """
        assert self._current is not None
        units = self._current.units
        for i, gradient in enumerate(gradients):
            gradients[i] = _to_host(gradient)
        gc.collect()
        done, writes = divmod(self._written, _UNIT)
        for number, unit in list(enumerate(units))[done:]:
            run = self._function(functools.partial(self._write, units, (number,), writes))
            oom.insist(
                functools.partial(self._run_call, run, [gradients[i] for i in unit.members]),
                f"Memory ran out in the middle of an update: {number} of {len(units)} groups of "
                "weights are updated and the others are not. Load the last checkpoint or snapshot "
                "before you train on.",
            )
            writes = 0

    def _run_call(self, run: Callable[[Any], Any], gradients: list[Any]) -> None:
        if not self._traits.eager:
            run((gradients, self._shared))
            return
        # Written one by one here: an interrupt must not fall between them. Old values that are
        # kept until then take the memory that the new ones took before they were written.
        with logging_writes() as log:
            undone_by(log, functools.partial(run, (gradients, self._shared)))

    def _begin(self, gradients: Sequence[Any]) -> _Update:
        """The functions that write an update with gradients like these."""
        kind = tuple((g is not None, isinstance(g, tf.Tensor)) for g in gradients)
        if kind not in self._updates:
            present = self._present(gradients)
            units = self._units.of(gradients, present)
            if without_gradient := self._only_averaged(present):
                units.append(Unit(without_gradient))
            self._updates[kind] = _Update(
                units,
                [self._call(units, numbers) for numbers in self._together(units, gradients)],
                self._function(self._apply.share) if self._apply.shares else None,
            )
        return self._updates[kind]

    def _call(self, units: Sequence[Unit], numbers: Sequence[int]) -> _Call:
        members = [i for number in numbers for i in units[number].members]
        return _Call(members, self._function(functools.partial(self._write, units, numbers, 0)))

    def _together(
        self, units: Sequence[Unit], gradients: Sequence[Any]
    ) -> Iterator[tuple[int, ...]]:
        """Which units are written in one call, by their numbers.

        Rows of a sparse gradient are as many as a batch has: such a unit is traced often, and
        alone. In an eager step each is undone by itself.
        """

        def joins(number: int) -> bool:
            members = units[number].members
            return not self._traits.eager and all(
                isinstance(gradients[i], tf.Tensor) for i in members
            )

        for joined, numbers in itertools.groupby(range(len(units)), joins):
            if joined:
                yield tuple(numbers)
            else:
                yield from ((number,) for number in numbers)

    def _function(self, body: Any) -> Any:
        return body if self._traits.eager else self._traits.function(body)

    def _present(self, gradients: Sequence[Any]) -> tuple[int, ...]:
        present = tuple(
            i for i, gradient in enumerate(gradients) if gradient is not None or i in self._sums
        )
        if not present:
            raise ValueError("No gradients provided for any variable.")
        return present

    def _only_averaged(self, present: Sequence[int]) -> list[int]:
        """The variables that are not updated and have a moving average all the same."""
        averaged = self._apply.averages()
        return [i for i in range(len(self._variables)) if averaged and i not in present]

    def _write(self, units: Sequence[Unit], numbers: Sequence[int], skip: int, given: Any) -> None:
        """Write units, in a graph or eagerly.

        Args:
            units: All of the update.
            numbers: Of those that are written.
            skip: So many writes of the first one are done already.
            given: The gradients of all of their variables, and what is shared.
        """
        gradients, shared = iter(given[0]), given[1]
        ends: list[Any] = []  # of the unit before
        for number in numbers:
            own = [next(gradients) for _ in units[number].members]
            last = number == len(units) - 1
            write = functools.partial(self._unit, number, units[number], last, skip, own, shared)
            with tf.control_dependencies(ends):
                ends = _end_of(write)
            skip = 0

    def _unit(
        self,
        number: int,
        unit: Unit,
        last: bool,
        skip: int,
        gradients: Sequence[Any],
        shared: Any,
    ) -> None:
        """Write one unit."""

        def write() -> None:
            if unit.in_turn:
                self._write_in_turn(unit, gradients, shared, number=number, last=last, skip=skip)
            else:
                self._write_beside(unit, gradients, shared, number=number, last=last)

        if self._apply.scales:
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
                self._apply.leave()
            if number is not None:
                self._tell(number, _UNIT)

        ops.cond(shared["finite"], wrote, left)

    def _write_beside(
        self,
        unit: Unit,
        gradients: Sequence[Any],
        shared: Any,
        *,
        number: int | None = None,
        last: bool,
        after: Sequence[Any] = (),
    ) -> Any:
        """Write a unit at once; returns the op after which nothing can fail."""
        with Overlay(self._optimizer) as overlay:
            self._apply.write(unit, gradients, shared, last)
        written = overlay.write(after)
        if number is not None:
            with tf.control_dependencies(written):
                self._tell(number, _UNIT)
        return overlay.ready

    def _write_in_turn(
        self,
        unit: Unit,
        gradients: Sequence[Any],
        shared: Any,
        *,
        number: int,
        last: bool,
        skip: int,
    ) -> None:
        """Write a unit in place, but for so many writes that are done."""
        # Room for all of it is asked for, and given back, before the update begins: the other units
        # need no more.
        begins = number == 0 and not skip
        room = _end_of(functools.partial(_ask_for, self._units.scratch(unit))) if begins else []
        tell = functools.partial(self._tell, number)
        with tf.control_dependencies(room), InTurn(self._optimizer, skip, tell) as turn:
            self._apply.write(unit, gradients, shared, last, turn)
        with tf.control_dependencies(turn.told):
            tell(_UNIT)

    def _tell(self, number: int, writes: int) -> Any:
        """Note how far a unit is."""
        return self._progress.assign(number * _UNIT + writes, read_value=False)


def _end_of(write: Callable[[], None]) -> list[Any]:
    """Write, and make an op that is run when all of it is done; none where it is not in a graph."""
    if tf.executing_eagerly():
        write()
        return []
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    write()
    with tf.control_dependencies(graph.get_operations()[before:]):
        return [tf.no_op()]


def _ask_for(room: int) -> None:
    """Allocate so much and give it back; in rows, as a dimension is a number of 32 bits."""
    tf.raw_ops.Empty(shape=[room // 2**20, 2**20], dtype=tf.uint8)


def _to_host(gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        with tf.device("CPU:0"):  # as tensors: a function takes no rows that are arrays
            rows, indices = map(
                tf.convert_to_tensor, map(on_host, (gradient.values, gradient.indices))
            )
        return tf.IndexedSlices(rows, indices, gradient.dense_shape)
    return on_host(gradient)
