"""An optimizer's writes in place, as Keras makes them, each of them counted.

Adam moves its two slots and then the variable, and each write needs the one before it and the
gradient, but nothing that was overwritten. So an update that stopped between two writes can resume:
it runs again, without the writes that are done. This takes the memory that Keras's own update
takes, where an `Overlay` needs room for all new values beside the old ones.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import StatelessScope

from legroom.backends import patches
from legroom.backends.parts import OPTIMIZER
from legroom.backends.tensorflow.commit.rehearsal import same_after

__all__ = ["InTurn", "can_stop_between"]

_WRITES = ("assign", "assign_add", "assign_sub")


class InTurn(StatelessScope):
    """Makes an optimizer's writes one after the other, and tells of each that it is done.

    A write waits until its variable is read again, or all is computed: so Adam's two slots are
    computed side by side. While a variable is written nothing else runs: if that failed, nobody
    would be told of the write.

    Args:
        optimizer: The optimizer, whose `assign`, `assign_add` and `assign_sub` are the writes.
        skip: So many of them are done already.
        done: Makes an op that tells, after each write, how many are done.
    """

    def __init__(self, optimizer: Any, skip: int, done: Callable[[int], Any]) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._skip = skip
        self._done = done
        self._count = 0
        self._waiting: dict[int, Callable[[], Any]] = {}  # by the variable's id
        self._before = 0  # ops of the graph that are older than what is computed now
        self.told: list[Any] = []  # the op that told of the last write
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> InTurn:
        super().__enter__()
        self._before = len(_operations())
        for name in _WRITES:
            later = self._later(getattr(self._optimizer, name))
            shadow = patches.shadowed(self._optimizer, OPTIMIZER, name, later)
            self._hooks.enter_context(shadow)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.catch_up()
        finally:
            self._hooks.close()
            super().__exit__(*error)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """A variable's own `assign`."""
        variable, value = update
        self._wait(variable, lambda: variable._value.assign(value))

    def get_current_value(self, variable: Any) -> None:
        """What a variable is read as is what is written to it."""
        if id(variable) in self._waiting:
            self.catch_up()

    def write(self, make: Callable[[], Any]) -> None:
        """Make one write, or leave it out where it is done."""
        self._count += 1
        if self._count <= self._skip:
            return
        if tf.executing_eagerly():
            make()
            self._done(self._count)
            return
        computed = [op for op in _operations()[self._before :] if op.type != "Placeholder"]
        for op, told in itertools.product(computed, self.told):
            op._add_control_input(told)
        before = len(_operations())
        with tf.control_dependencies([*self.told, *computed]):
            make()
        with tf.control_dependencies(_operations()[before:]):
            self.told = [self._done(self._count)]
        self._before = len(_operations())

    def _later(self, write: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        return lambda variable, value: self._wait(variable, lambda: write(variable, value))

    def _wait(self, variable: Any, make: Callable[[], Any]) -> None:
        self.get_current_value(variable)  # a second write comes after the first
        self._waiting[id(variable)] = make

    def catch_up(self) -> None:
        """Make the writes that wait."""
        waiting, self._waiting = list(self._waiting.values()), {}
        for make in waiting:
            self.write(make)


def _operations() -> list[Any]:
    """Those of the graph that is being traced; none where there is no graph."""
    if tf.executing_eagerly():
        return []
    return list(tf.compat.v1.get_default_graph().get_operations())


class _Enough(BaseException):
    """The one write that was wanted is made."""


# Rows of a small variable, some of them twice.
_ROWS = (0, 2, 0, 1, 2)


def can_stop_between(optimizer: Any, rank: int, *, sparse: bool = False) -> bool:
    """Whether an update can be resumed after any of its writes.

    Found by trying: a small variable is updated in one go, and another one write at a time, each
    time from the beginning.

    Args:
        optimizer: An optimizer that updates each variable by itself.
        rank: Of the variable: some have another update for vectors than for tables.
        sparse: Whether its gradient is one of some rows only.
    """
    shape = (3,) * rank

    def gradient(rows: Any) -> Any:
        values = tf.constant(rows)
        return tf.IndexedSlices(values, tf.constant(_ROWS), shape) if sparse else values

    def in_one_go(copy: Any, small: Any, rows: Any, rate: float) -> None:
        copy.update_step(gradient(rows), small, rate)

    def one_at_a_time(copy: Any, small: Any, rows: Any, rate: float) -> None:
        def stop(count: int) -> None:
            raise _Enough

        for done in range(20):
            try:
                with InTurn(copy, done, stop):
                    copy.update_step(gradient(rows), small, rate)
                return
            except _Enough:
                continue
        raise AssertionError("An update has no end.")

    rows = len(_ROWS) if sparse else None
    return same_after(optimizer, in_one_go, one_at_a_time, shape=shape, rows=rows, to_the_bit=True)
