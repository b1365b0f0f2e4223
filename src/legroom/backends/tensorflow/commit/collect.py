"""Catching the gradients on their way to the optimizer.

Every Keras training step, Keras's own or hand-written, ends in `Optimizer.apply`. While a
`collecting` context is open in a thread, `apply` writes nothing there: it hands over what it was
given. That is what lets any step run on a slice of its batch, and what keeps "the gradients are
finished" and "the weights are written" two separate moments.

An optimizer of the user's own may override `apply`, and call the one it inherits. It is caught
where the step calls it, so that what it does to the gradients is done to those of the whole batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src import backend
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.eager import record

from legroom.backends import patches
from legroom.backends.keras.models.known_optimizers import builds_only_slots
from legroom.backends.keras.slices.rules import OVERWRITTEN
from legroom.backends.parts import OPTIMIZER, RESOURCE_VARIABLES
from legroom.backends.tensorflow.commit.born_outside import born_outside
from legroom.backends.tensorflow.effects.write_log import unlogged
from legroom.backends.tensorflow.functions.nested import (
    functions_as_python,
    functions_as_they_are,
    taken_apart,
)
from legroom.core.errors import UnlikeBeforeError

__all__ = ["Applied", "Since", "StepCut", "collecting", "inner_variable",
           "looking_on", "watch_applies"]  # fmt: skip


def inner_variable(variable: Any) -> Any:
    """TensorFlow's own variable in Keras's; one that is TensorFlow's already as it is."""
    return getattr(variable, "_value", variable)


@dataclasses.dataclass(frozen=True)
class Applied:
    """One call of an optimizer's `apply` that was caught.

    Attributes:
        optimizer: The optimizer.
        gradients: One for each variable, or None.
        variables: The variables.
        method: What was called: "apply", or an `apply_gradients` of the optimizer's own.
        extra: Whether it was called with arguments that Keras's own does not take.
    """

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]
    method: str = "apply"
    extra: bool = False

    @property
    def refusal(self) -> str | None:
        """Why the gradients of slices can't be added up for this call; None where they can."""
        name = type(self.optimizer).__name__
        replaced = [method for method in _METHODS if method in vars(self.optimizer)]
        if replaced:
            return f"the optimizer's own `{replaced[0]}` was replaced on the {name} object"
        if self.extra:
            return f"{name}.{self.method} is called with arguments of its own"
        if any(getattr(v, "overwrite_with_gradient", False) for v in self.variables):
            return OVERWRITTEN
        return None

    @property
    def rate(self) -> Any:
        """TensorFlow's variable that holds the learning rate; None where there is none."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        rate = inner_variable(getattr(optimizer, "_learning_rate", None))
        return rate if isinstance(rate, tf.Variable) else None

    def carry_out(self, gradients: Sequence[Any]) -> None:
        """Call what was caught, with other gradients."""
        if self.method == "apply":
            self.optimizer.apply(list(gradients), self.variables)
        else:
            self.optimizer.apply_gradients(list(zip(gradients, self.variables, strict=True)))

    def written(self) -> list[Any]:
        """TensorFlow's variables that this `apply` writes."""
        rate = getattr(self.optimizer, "_learning_rate", None)
        return [
            inner_variable(variable)
            for variable in (*self.variables, *self.optimizer.variables)
            if variable is not rate
        ]


class Since:
    """Whether a step uses what its last `apply` has written, or would have written."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._looked_at: list[Any] | None = None
        self._watcher: Any = None
        self._written: list[Any] = []
        self._rates: list[tuple[Any, Any]] = []

    def begin(self, call: Applied) -> None:
        """An `apply` was caught, or carried out."""
        self.end()
        self._written += call.written()
        if call.rate is not None and tf.executing_eagerly():
            self._rates.append((call.rate, call.rate.numpy()))
        if not patches.has(_ACCESSES):
            patches.put(_ACCESSES, RESOURCE_VARIABLES, "variable_accessed", _noted)
        self._looked_at = []
        self._before, _accesses.noted = _accesses.noted, self._looked_at
        self._watcher = record.VariableWatcher()
        self._watcher.__enter__()

    def end(self) -> bool:
        """The step is done; whether it used what was applied.

        It has looked at a weight, a slot or the count of steps, or has set another learning rate,
        which is for the next step.
        """
        if self._looked_at is None:
            return False
        looked_at, self._looked_at = self._looked_at, None
        _accesses.noted = self._before
        self._watcher.__exit__(None, None, None)
        # It sees what is read below Python; but only what is trained, no slots and no counts.
        looked_at += self._watcher.watched_variables()
        if any(rate.numpy() != before for rate, before in self._rates):
            return True
        handles = {id(variable.handle) for variable in self._written}
        return any(id(variable.handle) in handles for variable in looked_at)


class _Accesses(threading.local):
    """The variables that this thread has looked at, where somebody wants to know."""

    noted: list[Any] | None = None


_accesses = _Accesses()
_ACCESSES = f"{__name__}.accesses"


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def variable_accessed(variable: Any) -> None:
        if _accesses.noted is not None:
            _accesses.noted.append(variable)
        original(variable)

    return variable_accessed


class StepCut(BaseException):
    """Ends a step right at the `apply` whose gradients were wanted.

    A BaseException, so that neither a user's `except Exception` nor AutoGraph's error rewriting
    catches it on the way.
    """


class _Collector(threading.local):
    on_apply: Callable[[Applied], None] | None = None
    on_applied: Callable[[Applied], None] | None = None
    on_elsewhere: Callable[[], None] | None = None
    graph: Any = None
    builds_outside = False


_collector = _Collector()
_watchers: list[Callable[[Any], None]] = []


def watch_applies(watcher: Callable[[Any], None]) -> None:
    """Have a function called with the optimizer whenever `apply` is carried out, or traced."""
    _patch()
    _watchers.append(watcher)
    patches.at_removal(lambda: _watchers.remove(watcher))


@contextlib.contextmanager
def collecting(
    on_apply: Callable[[Applied], None],
    *,
    on_function: Callable[[], None] | None = None,
    on_elsewhere: Callable[[], None] | None = None,
    builds_outside: bool = False,
) -> Iterator[None]:
    """Hand every `apply` of this thread to `on_apply` instead of carrying it out.

    Args:
        on_apply: What is handed over.
        on_function: Called where a `tf.function` that writes is called, which is then run as it is;
            without this it is run as Python.
        on_elsewhere: Called where an `apply` is traced in a branch or a loop of the graph, which is
            then carried out; without this it is an error.
        builds_outside: Build an optimizer outside of the trace, which spares it a second one: where
            nothing in the step looks at whether it is built.
    """
    _patch()
    before = dict(vars(_collector))
    _collector.on_apply, _collector.on_elsewhere = on_apply, on_elsewhere
    _collector.graph, _collector.builds_outside = _graph(), builds_outside
    try:
        with functions_as_python(on_function):
            yield
    finally:
        vars(_collector).clear()
        vars(_collector).update(before)


@contextlib.contextmanager
def looking_on(
    on_applied: Callable[[Applied], None], *, on_function: Callable[[], None]
) -> Iterator[None]:
    """Be told of every `apply` of this thread once it is carried out, as it is.

    Args:
        on_applied: What was applied.
        on_function: Called where a `tf.function` that writes is called, which is then run as it is.
    """
    _patch()
    before, _collector.on_applied = _collector.on_applied, on_applied
    try:
        with functions_as_python(on_function):
            yield
    finally:
        _collector.on_applied = before


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


_METHODS = ("apply", "apply_gradients")
_patched: weakref.WeakSet[type] = weakref.WeakSet()


def _patch() -> None:
    """Be called wherever a class has an `apply` of its own; also in classes made since last time.

    Keras's own `apply_gradients` only calls `apply`.
    """
    if not patches.has(__name__):
        _patched.clear()
    kinds = [BaseOptimizer]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind in _patched:
            continue
        _patched.add(kind)
        if inspect.isfunction(vars(kind).get("build")):
            patches.put(__name__, OPTIMIZER, "build", _unlogged, on=kind)
        for name in _METHODS if kind is not BaseOptimizer else ("apply",):
            if inspect.isfunction(vars(kind).get(name)):
                caught = functools.partial(_intercepted, method=name)
                patches.put(__name__, OPTIMIZER, name, caught, on=kind)


def _intercepted(original: Callable[..., Any], method: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        catch = _collector.on_apply if taken_apart() else None
        if catch is not None and _graph() is not _collector.graph:
            if _collector.on_elsewhere is None:
                raise UnlikeBeforeError(
                    "it applies its optimizer in a loop or a branch of its graph"
                )
            _collector.on_elsewhere()
            catch = None
        if catch is None:
            tell = _collector.on_applied if taken_apart() else None
            if tell is not None and method == "apply_gradients":
                args, kwargs = _pairs_as_list(args, kwargs)
            for watcher in _watchers:
                watcher(self)
            with functions_as_they_are():
                result = original(self, *args, **kwargs)
            if tell is not None and (call := _as_applied(self, method, args, kwargs)) is not None:
                tell(call)
            return result
        call = _as_applied(self, method, args, kwargs)
        if call is not None:
            if not self.built and type(self).apply.__module__.startswith("keras."):
                # Of Keras's own it is known that they begin by building the optimizer.
                outside = _collector.builds_outside and builds_only_slots(self)
                lifted = born_outside() if outside else contextlib.nullcontext()
                with lifted, backend.name_scope(self.name, caller=self):
                    self.build(call.variables)
                self.built = True
            catch(call)
        return self.iterations if method == "apply_gradients" else None

    return apply


def _pairs_as_list(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of `apply_gradients` that can be read twice: most people hand over a `zip`."""
    if args:
        return (list(args[0]), *args[1:]), kwargs
    return args, {**kwargs, "grads_and_vars": list(kwargs["grads_and_vars"])}


def _unlogged(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `build` past an open log: what a slot begins with is not to be put back to zeros."""

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unlogged():
            return original(self, *args, **kwargs)

    return build


def _as_applied(optimizer: Any, method: str, args: Any, kwargs: Any) -> Applied | None:
    """What a call of `apply` or `apply_gradients` hands over; None if that is nothing."""
    names = ("grads", "trainable_variables") if method == "apply" else ("grads_and_vars",)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    extra = len(args) > len(names) or any(name not in names for name in kwargs)
    if method == "apply":
        grads, variables = given["grads"], given.get("trainable_variables")
    else:
        pairs = list(given["grads_and_vars"])
        grads, variables = [g for g, _ in pairs], [v for _, v in pairs]
    # A user may hand over anything that is a tensor in the end, a variable too.
    gradients = [
        g if g is None or isinstance(g, (tf.Tensor, tf.IndexedSlices)) else tf.convert_to_tensor(g)
        for g in grads
    ]
    if not gradients:
        return None
    if variables is None:
        variables = optimizer._trainable_variables
    return Applied(optimizer, gradients, list(variables), method, extra)
