"""How a step is traced: as Keras would trace it, in functions of legroom's own."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from legroom.backends.keras.slices.python_state import PythonState

__all__ = ["Traits", "all_ours", "is_ours", "own_function"]


class Traits:
    """How a step is to be traced.

    Args:
        call: The step, as a function of its data.
        strategy: The distribution strategy it runs under.
        eager: Run it without tracing.
        jit_compile: Compile it with XLA.
        trains: Whether the step applies an optimizer, as far as can be told.
        spec: The shapes and types of its data, where its source declares them. Keras traces a
            step for what its input declares, which as a rule leaves the batch's size open.
        origin: The function as the user wrote it, where `call` is another one.
        objects: What it is always called with, besides its data.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        strategy: Any = None,
        eager: bool = False,
        jit_compile: bool | None = None,
        trains: bool = True,
        spec: Any = None,
        origin: Any = None,
        objects: Sequence[Any] = (),
    ) -> None:
        self.objects = objects
        self.call = call
        self.origin = call if origin is None else origin
        self.strategy = strategy or tf.distribute.get_strategy()
        self.eager = eager
        self.jit_compile = jit_compile
        self.trains = trains
        self.spec = spec

    def run(self, body: Callable[[Any], Any], data: Any) -> Any:
        """Run a body in the replica context that Keras would give it."""
        return self.strategy.run(body, args=(data,))

    def python_state(self) -> PythonState:
        """What the step's Python keeps beside variables, as it is now, to be put back."""
        return PythonState(self.origin, *self.objects)

    @property
    def is_keras_own(self) -> bool:
        """Whether the step is one of Keras's, which a user's class did not replace."""
        return getattr(self.call, "__module__", "").startswith("keras.src")

    @property
    def any_batch_size(self) -> bool:
        """Whether the step is traced for batches of any size."""
        leaves = tree.flatten(self.spec) if self.spec is not None and not self.eager else []
        return any(
            leaf is not None and leaf.shape.rank and leaf.shape[0] is None for leaf in leaves
        )

    def function(self, body: Callable[[Any], Any], spec: Any = None) -> Any:
        """Make a `tf.function` of a body, traced as Keras would trace the step."""

        @tf.autograph.experimental.do_not_convert
        def step(data: Any) -> Any:
            return self.run(body, data)

        return own_function(step, self.jit_compile, spec)


_numbers = itertools.count(1)
_ours: weakref.WeakSet[Any] = weakref.WeakSet()


def own_function(body: Callable[..., Any], jit_compile: bool | None, spec: Any = None) -> Any:
    """A `tf.function` of legroom's own, which the guard does not guard again."""
    # TensorFlow counts traces by code object, and warns of too many: each function has its own.
    inner = inspect.unwrap(body)
    inner.__code__ = inner.__code__.replace(co_name=f"legroom_step_{next(_numbers)}")
    if spec is not None:
        made = tf.function(body, input_signature=[spec], jit_compile=jit_compile or None)
    else:
        made = tf.function(body, reduce_retracing=True, jit_compile=jit_compile or None)
    _ours.add(made)
    return made


class _Context(threading.local):
    ours: bool = False


_context = _Context()


@contextlib.contextmanager
def all_ours() -> Iterator[None]:
    """Have every `tf.function` that this thread calls count as legroom's own: none is guarded."""
    before, _context.ours = _context.ours, True
    try:
        yield
    finally:
        _context.ours = before


def is_ours(function: Any) -> bool:
    """Whether a `tf.function` is one of legroom's own."""
    return _context.ours or function in _ours
