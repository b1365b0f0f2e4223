"""Hand-written training steps: plain functions, and `tf.function`s that apply an optimizer.

A `tf.function` of the user's is taken apart: its Python function is traced anew, with its `apply`
caught, as Keras's own step is. Whether a `tf.function` trains is seen when it is first traced,
before it has run.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from legroom.backends.tensorflow import collect
from legroom.backends.tensorflow.step import Step
from legroom.backends.tensorflow.traits import Traits, is_ours

__all__ = ["Guard", "GuardedFunction", "guard_functions", "guarded_function"]

# Makes the guarded runner of a step.
Guard = Callable[[Step], Callable[[Any], Any]]


def guarded_function(function: Any, guard: Guard, returns: Any = None) -> GuardedFunction:
    """Guard a step, plain or a `tf.function`.

    Args:
        function: The step.
        guard: Makes the guarded runner.
        returns: How its results are put together, where the user said so.
    """
    return GuardedFunction(function, guard, returns)


class GuardedFunction:
    """A step that is called like the function it stands for."""

    def __init__(self, function: Any, guard: Guard, returns: Any = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._guard = guard
        self._returns = returns
        self._runner: Callable[[Any], Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, guarded."""
        if not tf.executing_eagerly():
            return self._function(*args, **kwargs)  # part of another function, which is traced
        if self._runner is None:
            self._runner = self._guard(Step(self._traits(), returns=self._returns))
        return self._runner((args, kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance comes first among the arguments."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def _traits(self) -> Traits:
        function = self._function
        if not isinstance(function, Function):
            return Traits(lambda data: function(*data[0], **data[1]), eager=True)
        python = function.python_function
        converts = function._autograph

        def call(data: Any) -> Any:
            args, kwargs = data
            if tf.executing_eagerly() or not converts:
                return python(*args, **kwargs)
            with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
                converted = autograph.tf_convert(python, ag_ctx.control_status_ctx())
                return converted(*args, **kwargs)

        return Traits(call, jit_compile=function._jit_compile)


class _Looking(threading.local):
    found: bool | None = None


_looking = _Looking()
_steps: weakref.WeakKeyDictionary[Any, GuardedFunction | None] = weakref.WeakKeyDictionary()


def guard_functions(guard: Guard) -> None:
    """Guard every `tf.function` of this process in which a Keras optimizer is applied."""
    collect.watch_applies(_saw_apply)
    Function.__call__ = _calling(Function.__call__, guard)


def _calling(original: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            step = _steps[self]
        except KeyError:
            if is_ours(self) or not tf.executing_eagerly() or _looking.found is not None:
                return original(self, *args, **kwargs)
            step = _steps[self] = (
                GuardedFunction(self, guard) if _trains(self, args, kwargs) else None
            )
        if step is None or not tf.executing_eagerly():
            return original(self, *args, **kwargs)
        return step(*args, **kwargs)

    return call


def _trains(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether tracing a function for these arguments meets an optimizer's `apply`."""
    with _look():
        try:
            function.get_concrete_function(*args, **kwargs)
        except Exception:
            return False  # what is wrong will be said when it is called
        return bool(_looking.found)


@contextlib.contextmanager
def _look() -> Iterator[None]:
    _looking.found = False
    try:
        yield
    finally:
        _looking.found = None


def _saw_apply(optimizer: Any) -> None:
    del optimizer
    if _looking.found is not None:
        _looking.found = True
