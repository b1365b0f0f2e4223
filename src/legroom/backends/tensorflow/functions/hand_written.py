"""Hand-written training steps: plain functions, and `tf.function`s that apply an optimizer.

A `tf.function` of the user's is taken apart: its Python function is traced again, with its `apply`
caught, as Keras's own step is. Whether a `tf.function` trains is seen when it is first traced,
before it has run. Called with other Python arguments it is another step (see `by_arguments`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from legroom.backends import patches
from legroom.backends.careful import Careful
from legroom.backends.parts import FUNCTION
from legroom.backends.tensorflow.commit import collect
from legroom.backends.tensorflow.effects.write_log import current_log
from legroom.backends.tensorflow.functions.by_arguments import VariedStep, is_number
from legroom.backends.tensorflow.functions.nested import as_python, taken_apart, with_signature
from legroom.backends.tensorflow.step.step import Step
from legroom.backends.tensorflow.step.traits import Traits, is_ours
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["Guard", "GuardedFunction", "advise_loops", "guard_functions", "guarded_function"]

# Makes the guarded runner of a step.
Guard = Callable[[Step], Callable[[Any], Any]]

# A function that is called with ever new objects is a new step each time; the oldest are dropped.
_MOST_STEPS = 32


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
        # For each set of Python objects it is called with (a model, an optimizer, a word), because
        # with others it is another step. The objects are kept, so that no other has their identity.
        self._runners: dict[tuple[Any, ...], tuple[Callable[[Any], Any], list[Any]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, guarded."""
        if not tf.executing_eagerly() or patches.is_off():
            return self._function(*args, **kwargs)  # part of another function, which is traced
        given = (with_signature(self._function, args), kwargs)
        leaves = tree.flatten(given)
        fixed = {i: leaf for i, leaf in enumerate(leaves) if not _is_data(leaf)}
        key = tuple((i, x if isinstance(x, (str, bool)) else id(x)) for i, x in fixed.items())
        if key not in self._runners:
            while len(self._runners) >= _MOST_STEPS:
                self._runners.pop(next(iter(self._runners)))
            step = VariedStep(self._traits(fixed), returns=self._returns)
            runner = Careful(step, self._guard, self._say_unguarded)
            self._runners[key] = runner, list(fixed.values())
        data = [None if i in fixed else leaf for i, leaf in enumerate(leaves)]
        return self._runners[key][0](tree.pack_sequence_as(given, data))

    def _say_unguarded(self, error: BaseException) -> None:
        name = getattr(self._function, "__name__", "a step")
        say_left_out(
            f"{name} runs as it is, without legroom, because legroom itself failed "
            "(please report it)",
            in_a_line(error),
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance comes first among the arguments."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def _traits(self, fixed: dict[int, Any]) -> Traits:
        """How the step with these objects, by their place among its arguments, is traced."""
        function = self._function
        traced = isinstance(function, Function)

        def call(data: Any) -> Any:
            leaves = [fixed.get(i, leaf) for i, leaf in enumerate(tree.flatten(data))]
            args, kwargs = tree.pack_sequence_as(data, leaves)
            return as_python(function, args, kwargs) if traced else function(*args, **kwargs)

        origin = function.python_function if traced else function
        if not traced or tf.config.functions_run_eagerly():
            return Traits(call, eager=True, origin=origin, objects=list(fixed.values()))
        return Traits(call, jit_compile=function._jit_compile, origin=origin)


def _is_data(leaf: Any) -> bool:
    """Whether an argument is data, or a number that may go on counting.

    Variables are no data: which one is given decides what is trained. An iterator is, as it is for
    TensorFlow: each epoch has a new one.
    """
    if isinstance(leaf, (tf.Variable, keras.Variable)):
        return False
    if isinstance(leaf, (np.ndarray, np.generic)) or is_number(leaf):
        return True
    return bool(tf.is_tensor(leaf)) or isinstance(leaf, tf.data.Iterator)


class _Looking(threading.local):
    found: bool | None = None


_looking = _Looking()
_steps: weakref.WeakKeyDictionary[Any, GuardedFunction | None] = weakref.WeakKeyDictionary()


def advise_loops() -> None:
    """Loops are guarded as they are."""


def guard_functions(guard: Guard) -> None:
    """Guard every `tf.function` of this process in which a Keras optimizer is applied."""
    if patches.has(__name__):
        return
    collect.watch_applies(_saw_apply)
    patches.put(__name__, FUNCTION, "__call__", functools.partial(_calling, guard))
    patches.at_removal(_steps.clear)


def _calling(guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            step = _steps[self]
        except KeyError:
            if is_ours(self) or not tf.executing_eagerly() or _looking.found is not None:
                return original(self, *args, **kwargs)
            if taken_apart() or current_log() is not None:
                return original(self, *args, **kwargs)  # a part of another step
            if tf.config.functions_run_eagerly():
                return original(self, *args, **kwargs)  # someone debugs: tracing runs it once more
            step = _steps[self] = (
                GuardedFunction(self, guard) if _trains(self, args, kwargs) else None
            )
        if step is None or not tf.executing_eagerly() or taken_apart() or current_log() is not None:
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
