"""Catching the gradients on their way to the optimizer.

Every Keras training step, Keras's own or hand-written, ends in `Optimizer.apply`. While a
`collecting` context is open in a thread, `apply` writes nothing there: it hands over what it was
given. That is what lets any step run on a slice of its batch, and what keeps "the gradients are
finished" and "the weights are written" two separate moments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tensorflow.python.eager import record

from legroom.backends import patches

__all__ = ["Applied", "Since", "StepCut", "collecting", "inner_variable", "watch_applies"]


def inner_variable(variable: Any) -> Any:
    """TensorFlow's own variable in Keras's; one that is TensorFlow's already as it is."""
    return getattr(variable, "_value", variable)


@dataclasses.dataclass(frozen=True)
class Applied:
    """One call of an optimizer's `apply` that was caught."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]

    def written(self) -> list[Any]:
        """TensorFlow's variables that this `apply` writes."""
        rate = getattr(self.optimizer, "_learning_rate", None)
        return [
            inner_variable(variable)
            for variable in (*self.variables, *self.optimizer.variables)
            if variable is not rate
        ]


class Since:
    """Which weights are looked at since the last `apply`: a step may go on with the new ones."""

    def __init__(self) -> None:
        self._watcher: Any = None
        self._written: list[Any] = []

    def begin(self, call: Applied) -> None:
        """An `apply` was caught."""
        self.end()
        self._written += call.written()
        self._watcher = record.VariableWatcher()
        self._watcher.__enter__()

    def end(self) -> bool:
        """The step is through; whether a weight that was applied to was looked at after that."""
        if self._watcher is None:
            return False
        watcher, self._watcher = self._watcher, None
        watcher.__exit__(None, None, None)
        handles = {id(variable.handle) for variable in self._written}
        return any(id(seen.handle) in handles for seen in watcher.watched_variables())


class StepCut(BaseException):
    """Ends a step right at the `apply` whose gradients were wanted.

    A BaseException, so that neither a user's `except Exception` nor AutoGraph's error rewriting
    catches it on the way.
    """


class _Collector(threading.local):
    on_apply: Callable[[Applied], None] | None = None


_collector = _Collector()
_watchers: list[Callable[[Any], None]] = []


def watch_applies(watcher: Callable[[Any], None]) -> None:
    """Have a function called with the optimizer whenever `apply` is carried out, or traced."""
    _patch()
    _watchers.append(watcher)
    patches.at_removal(lambda: _watchers.remove(watcher))


@contextlib.contextmanager
def collecting(on_apply: Callable[[Applied], None]) -> Iterator[None]:
    """Hand every `apply` of this thread to `on_apply` instead of carrying it out."""
    _patch()
    before, _collector.on_apply = _collector.on_apply, on_apply
    try:
        yield
    finally:
        _collector.on_apply = before


def _patch() -> None:
    if not patches.has(__name__):
        for kind in (BaseOptimizer, LossScaleOptimizer):
            patches.put(__name__, kind, "apply", _intercepted)


def _intercepted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        catch = _collector.on_apply
        if catch is None:
            for watcher in _watchers:
                watcher(self)
            return original(self, grads, trainable_variables)
        # A user may hand over anything that is a tensor in the end, a variable too.
        gradients = [
            g
            if g is None or isinstance(g, (tf.Tensor, tf.IndexedSlices))
            else tf.convert_to_tensor(g)
            for g in grads
        ]
        if not gradients:
            return None
        variables = list(
            trainable_variables if trainable_variables is not None else self._trainable_variables
        )
        if not self.built:
            from keras.src import backend

            with backend.name_scope(self.name, caller=self):
                self.build(variables)
            self.built = True
        catch(Applied(self, gradients, variables))
        return None

    return apply
