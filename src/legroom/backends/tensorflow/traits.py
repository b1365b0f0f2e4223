"""How a step is traced: as Keras would trace it, in functions of legroom's own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from legroom.backends.tensorflow.python_state import PythonState
from legroom.core.events import emit

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
        model = getattr(call, "__self__", None)
        if spec is not None and not eager and isinstance(model, keras.Model):
            origin, call = call, _AsFirstTraced(call, model, spec)
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


class _AsFirstTraced:
    """A model's step that does what it did when it was first traced.

    Keras traces a step once for batches of any size: what is frozen later without compiling again
    is trained all the same, and what the step counts in Python is counted once. Slices are traced
    when they are first met, which may be later, and `legroom.fit` traces again.
    """

    def __init__(self, call: Callable[[Any], Any], model: Any, spec: Any) -> None:
        functools.update_wrapper(self, call)
        self._call = call
        self._model = model
        known = _first.setdefault(model, [])
        compiled = getattr(model, "_compile_config", None)
        known[:] = [entry for entry in known if entry[0] is compiled]
        for _, other, flags in known:
            if other == spec:
                self._flags = flags
                break
        else:
            self._flags = []
            known.append((compiled, spec, self._flags))
        self._python: PythonState | None = None

    def __call__(self, data: Any) -> Any:
        now, python = self._trainable(), PythonState(self._call)
        self._put(self._flags)
        if self._python is not None:
            self._python.restore()
        try:
            return self._call(data)
        finally:
            self._put(now)
            if self._python is not None:
                python.restore()
            else:
                self._python = python
                self._tell(python.counted())
            if not self._flags:
                self._flags.extend(now)

    def _tell(self, changed: list[str]) -> None:
        if changed:
            name = f"{type(self._model).__name__}.{self._call.__name__}"
            emit(
                "note",
                f"{name} changes {', '.join(changed)} in Python, which TensorFlow runs only when "
                "it traces the step, and legroom traces it another number of times: if the step "
                "depends on it, keep it in a variable (keras.Variable), or use run_eagerly=True",
            )

    def _trainable(self) -> list[tuple[Any, str, bool]]:
        things = [(layer, "_trainable") for layer in [self._model, *self._model._flatten_layers()]]
        things += [(variable, "trainable") for variable in self._model.variables]
        return [(thing, name, bool(getattr(thing, name))) for thing, name in things]

    @staticmethod
    def _put(values: list[tuple[Any, str, bool]]) -> None:
        for thing, name, value in values:
            if bool(getattr(thing, name)) != value:
                (object.__setattr__ if name == "_trainable" else setattr)(thing, name, value)


# For each model what it was compiled to, the types of its data, and what was trainable then.
_first: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any, list[tuple[Any, str, bool]]]]] = (
    weakref.WeakKeyDictionary()
)
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
