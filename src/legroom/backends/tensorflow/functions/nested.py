"""`tf.function`s that a step calls.

A function of the user's is traced once, and called by that trace from then on. Traced while
gradients are caught, it would never apply them again; traced before, its `apply` can't be caught
and its writes can't be seen. So while a step is taken apart, such a function runs as the Python
that it is; and while a step runs as it is, what the function will write is read off its graph.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import tree
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph

from legroom.backends import patches
from legroom.backends.parts import FUNCTION
from legroom.backends.tensorflow.effects.variables import written_handles
from legroom.backends.tensorflow.effects.write_log import WriteLog, current_log, unlogged
from legroom.backends.tensorflow.step.traits import is_ours

__all__ = [
    "as_python",
    "functions_as_python",
    "functions_as_they_are",
    "patch_functions",
    "taken_apart",
    "with_signature",
]


class _Here(threading.local):
    # None: as they are. Else they run as Python, or, where something is to be told of those that
    # write, as they are.
    mode: tuple[Callable[[], None] | None] | None = None


_here = _Here()
# The handles that each graph writes: to look through one takes longer than to run it.
_written: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def functions_as_python(on_write: Callable[[], None] | None = None) -> Iterator[None]:
    """Run functions that this thread calls as Python.

    Args:
        on_write: Let them be as they are, and call this where one writes variables.
    """
    patch_functions()
    before, _here.mode = _here.mode, (on_write,)
    try:
        yield
    finally:
        _here.mode = before


@contextlib.contextmanager
def functions_as_they_are() -> Iterator[None]:
    """Leave functions that this thread calls alone again."""
    before, _here.mode = _here.mode, None
    try:
        yield
    finally:
        _here.mode = before


def taken_apart() -> bool:
    """Whether what this thread runs is being taken apart, and not a function of its own."""
    return _here.mode is not None


def as_python(function: Any, args: Any, kwargs: Any) -> Any:
    """Call a function's own Python, converted by AutoGraph where it is being traced."""
    python = function.python_function
    if tf.executing_eagerly() or not function._autograph:
        return python(*args, **kwargs)
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
        converted = autograph.tf_convert(python, ag_ctx.control_status_ctx())
        return converted(*args, **kwargs)


def with_signature(function: Any, args: Any) -> Any:
    """Arguments as a declared signature has them: arrays of other types are converted."""
    signature = getattr(function, "input_signature", None)
    if signature is None:
        return args
    leaves, specs = tree.flatten(args), tree.flatten(list(signature))
    leaves[: len(specs)] = [
        tf.convert_to_tensor(leaf, spec.dtype)
        if isinstance(spec, tf.TensorSpec) and not tf.is_tensor(leaf)
        else leaf
        for leaf, spec in zip(leaves, specs, strict=False)
    ]
    return tree.pack_sequence_as(args, leaves)


def patch_functions() -> None:
    """Be called wherever a `tf.function` is called."""
    if not patches.has(__name__):
        patches.put(__name__, FUNCTION, "__call__", _looked_into)


def _looked_into(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode, log = _here.mode, current_log()
        if (mode is None and log is None) or is_ours(self):
            return original(self, *args, **kwargs)
        if mode is not None and mode[0] is None:
            return as_python(self, with_signature(self, args), kwargs)
        with functions_as_they_are(), unlogged():
            graph = self.get_concrete_function(*args, **kwargs).graph
        if graph not in _written:
            _written[graph] = written_handles(graph)
        handles = _written[graph]
        if handles and mode is not None and mode[0] is not None:
            mode[0]()
        if log is not None and tf.executing_eagerly():
            _note(log, graph, handles)
        with functions_as_they_are(), unlogged():
            return original(self, *args, **kwargs)

    return call


def _note(log: WriteLog, graph: Any, handles: list[Any]) -> None:
    variables = {id(variable.handle): variable for variable in graph.variables}
    for handle in handles:
        if id(handle) in variables:
            log.note(variables[id(handle)])
