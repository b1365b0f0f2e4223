"""Writes to variables, seen as Python makes them: noted, to be put back, or left undone.

In a graph it can be read off afterwards what a step writes (see `effects`). Eagerly it can't; and
that a write is not to happen has to be known, in both, before it is made.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from legroom.backends import patches
from legroom.backends.parts import RESOURCE_VARIABLE
from legroom.backends.tensorflow.effects.variables import on_host, put_back

__all__ = ["WriteLog", "current_log", "logging_writes", "unlogged", "writing_only"]


class WriteLog:
    """The old values of all variables written since the log was opened.

    Args:
        on_host: Copy them to the host's memory. Elsewhere they are shared until they are written.
    """

    def __init__(self, on_host: bool = False) -> None:
        self._on_host = on_host
        self._old: dict[int, tuple[Any, Any]] = {}

    def note(self, variable: Any) -> None:
        """Keep a variable's value, if this is its first write."""
        if id(variable) not in self._old and tf.executing_eagerly():
            value = gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype)
            self._old[id(variable)] = (variable, on_host(value) if self._on_host else value)

    @property
    def written(self) -> list[tuple[Any, Any]]:
        """The variables written so far, each with the value it had before."""
        return list(self._old.values())

    def restore(self) -> None:
        """Put every variable back. State born since then goes back to its first value."""
        for variable, value in self._old.values():
            put_back(variable.handle, value)


@contextlib.contextmanager
def logging_writes(log: WriteLog | None = None, *, on_host: bool = False) -> Iterator[WriteLog]:
    """Remember, in eager execution, what every variable held before its first write.

    Args:
        log: Go on with this log: a distribution strategy runs a step in a thread of its own.
        on_host: Of a new log, see `WriteLog`.
    """
    log = log or WriteLog(on_host)
    before, _here.log = _here.log, log
    _patch_writes()
    try:
        yield log
    finally:
        _here.log = before


def current_log() -> WriteLog | None:
    """The log that is open in this thread."""
    return _here.log


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Write what no one will want back, past an open log."""
    before, _here.log = _here.log, None
    try:
        yield
    finally:
        _here.log = before


@contextlib.contextmanager
def writing_only(may: Callable[[Any], bool]) -> Iterator[None]:
    """Leave writes of this thread undone, eager or traced.

    Args:
        may: Whether a variable may be written; asked at each write.
    """
    before, _here.may = _here.may, may
    _patch_writes()
    try:
        yield
    finally:
        _here.may = before


class _Here(threading.local):
    log: WriteLog | None = None
    may: Callable[[Any], bool] | None = None


_here = _Here()
_WRITERS = (
    "assign",
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_sub",
    "scatter_update",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_div",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
)


def _patch_writes() -> None:
    if patches.has(__name__):
        return
    kinds = [BaseResourceVariable]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        for name in _WRITERS:
            if name in vars(kind):  # some subclasses carry their own copy of the method
                patches.put(__name__, RESOURCE_VARIABLE, name, _seen, on=kind)


def _seen(original: Any) -> Any:
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.may is not None and not _here.may(self):
            return self if kwargs.get("read_value", True) else tf.no_op()
        if _here.log is not None:
            _here.log.note(self)
        return original(self, *args, **kwargs)

    return write
