"""An optimizer's writes in place, as Keras makes them, each of them counted.

Adam moves its two slots and then the variable, and each write needs the one before it and the
gradient, but nothing that was overwritten. So an update that stopped between two writes can resume:
it runs again, without the writes that are done. This takes the memory that Keras's own update
takes, where an `Overlay` needs room for all new values beside the old ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from legroom.backends import patches
from legroom.backends.parts import OPTIMIZER
from legroom.backends.tensorflow.commit.rehearsal import same_after

__all__ = ["InTurn", "can_stop_between"]

_WRITES = ("assign", "assign_add", "assign_sub")


class InTurn:
    """Makes an optimizer's writes one after the other, and tells of each that it is done.

    Args:
        optimizer: The optimizer, whose `assign`, `assign_add` and `assign_sub` are the writes.
        skip: So many of them are done already.
        done: Makes an op that tells, after each write, how many are done.
    """

    def __init__(self, optimizer: Any, skip: int, done: Callable[[int], Any]) -> None:
        self._optimizer = optimizer
        self._skip = skip
        self._done = done
        self._count = 0
        self.told: list[Any] = []  # the op that told of the last write
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> InTurn:
        for name in _WRITES:
            counted = self._counted(getattr(self._optimizer, name))
            shadow = patches.shadowed(self._optimizer, OPTIMIZER, name, counted)
            self._hooks.enter_context(shadow)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()

    def write(self, make: Callable[[], Any]) -> None:
        """Make one write, or leave it out where it is done."""
        self._count += 1
        if self._count <= self._skip:
            return
        if tf.executing_eagerly():
            make()
            self._done(self._count)
            return
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.control_dependencies(self.told):
            make()
        with tf.control_dependencies(graph.get_operations()[before:]):
            self.told = [self._done(self._count)]

    def _counted(self, write: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        return lambda variable, value: self.write(lambda: write(variable, value))


class _Enough(BaseException):
    """The one write that was wanted is made."""


def can_stop_between(optimizer: Any, rank: int) -> bool:
    """Whether an update with a dense gradient can be resumed after any of its writes.

    Found by trying: a small variable is updated in one go, and another one write at a time, each
    time from the beginning.

    Args:
        optimizer: An optimizer that updates each variable by itself.
        rank: Of the variable: some have another update for vectors than for tables.
    """

    def in_one_go(copy: Any, small: Any, rows: Any, rate: float) -> None:
        copy.update_step(tf.constant(rows), small, rate)

    def one_at_a_time(copy: Any, small: Any, rows: Any, rate: float) -> None:
        def stop(count: int) -> None:
            raise _Enough

        for done in range(20):
            try:
                with InTurn(copy, done, stop):
                    copy.update_step(tf.constant(rows), small, rate)
                return
            except _Enough:
                continue
        raise AssertionError("An update has no end.")

    return same_after(optimizer, in_one_go, one_at_a_time, shape=(3,) * rank, to_the_bit=True)
