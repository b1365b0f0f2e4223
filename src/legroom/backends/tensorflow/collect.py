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

__all__ = ["Applied", "StepCut", "collecting", "watch_applies"]


@dataclasses.dataclass(frozen=True)
class Applied:
    """One call of an optimizer's `apply` that was caught."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]


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


@contextlib.contextmanager
def collecting(on_apply: Callable[[Applied], None]) -> Iterator[None]:
    """Hand every `apply` of this thread to `on_apply` instead of carrying it out."""
    _patch()
    before, _collector.on_apply = _collector.on_apply, on_apply
    try:
        yield
    finally:
        _collector.on_apply = before


@functools.cache
def _patch() -> None:
    for kind in (BaseOptimizer, LossScaleOptimizer):
        kind.apply = _intercepted(kind.apply)


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
