"""Tracing a user's model without leaving a mark on it.

Tracing a training step changes what it touches: an optimizer is built and gets its slots, metrics
and losses are built, layers are, names are counted up, random seeds are drawn. Inside
`untouched` all of that may happen, and afterwards none of it has. Variables that are born
inside have no memory: their handles know shape and type, which is all that a trace needs, so that
asking about a model that is too large for this machine does not run out of memory itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.utils.tracking import Tracker
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from legroom.backends import patches
from legroom.backends.keras.own_draws import own_draws

__all__ = ["untouched", "without_memory"]

# What Keras keeps of itself and a trace may change. Nodes, tensors and variables are not among
# them: a trace makes new ones, and leaves those that were there.
_OURS = (keras.Layer, keras.Metric, keras.Optimizer, keras.Loss, keras.random.SeedGenerator,
         Tracker)  # fmt: skip

_ZEROS = "keras.src.initializers.constant_initializers:Zeros"


@contextlib.contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Put back everything that happens to these models, and around them, inside.

    Args:
        roots: Models, or whatever holds layers, optimizers and metrics.
    """
    objects, containers = _reachable(roots)
    attributes = [(thing, dict(vars(thing))) for thing in objects]
    contents = [(container, _copied(container)) for container in containers]
    with _same_process_state():
        try:
            yield
        finally:
            for thing, values in attributes:
                vars(thing).clear()
                vars(thing).update(values)
            for container, values in contents:
                _refill(container, values)


@contextlib.contextmanager
def without_memory() -> Iterator[list[Any]]:
    """Give variables that are born inside no memory; yields the list of them, as it grows."""
    born: list[Any] = []

    def create(make: Any, **options: Any) -> Any:
        value: Any = options.get("initial_value")
        if callable(value):
            # Called in a graph that is thrown away: only its shape is asked for. Slots begin as
            # zeros, hundreds of them, and need no graph for that.
            with tf.Graph().as_default(), patches.replaced(_ZEROS, "__call__", _shape_of_zeros):
                value = value()
        value = tf.nest.flatten(value)[0] if not hasattr(value, "shape") else value
        variable = resource_variable_ops.UninitializedVariable(
            trainable=options.get("trainable"),
            shape=options.get("shape") or value.shape,
            dtype=tf.as_dtype(options.get("dtype") or value.dtype),
        )
        if options.get("name"):
            # Not by the argument: TensorFlow makes a kernel for each name, and that takes longer
            # than all the rest.
            variable._handle_name = f"{options['name']}:0"
        born.append(variable)
        return variable

    # In the eager context, because that is where Keras makes its variables, whatever it traces.
    with tf.variable_creator_scope(create):
        yield born


def _shape_of_zeros(original: Callable[..., Any]) -> Callable[..., Any]:
    def zeros(initializer: Any, shape: Any, dtype: Any = None) -> Any:
        return tf.TensorSpec(shape, keras.backend.standardize_dtype(dtype))

    return zeros


def _reachable(roots: Any) -> tuple[list[Any], list[Any]]:
    """The objects of Keras that can be reached from here, and the containers that hold them."""
    objects: list[Any] = []
    containers: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    while waiting:
        thing = waiting.pop()
        thing = getattr(thing, "__wrapped__", thing)  # TensorFlow wraps the dicts it tracks
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _OURS):
            objects.append(thing)
            waiting.extend(vars(thing).values())
        elif isinstance(thing, (list, set, dict)):
            containers.append(thing)
            waiting.extend(thing.values() if isinstance(thing, dict) else thing)
            waiting.append(getattr(thing, "_storage", None))  # of the lists it tracks, as well
        elif isinstance(thing, tuple):
            waiting.extend(thing)
    return objects, containers


def _copied(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _refill(container: Any, values: Any) -> None:
    """Give a container its old contents, past what its own class does on a change."""
    if _same(container, values):
        return
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, values)
    elif isinstance(container, list):
        list.clear(container)
        list.extend(container, values)
    else:
        set.clear(container)
        set.update(container, values)


def _same(container: Any, values: Any) -> bool:
    """Whether nothing was added, taken or replaced: compared by identity, as tensors can't be."""
    if len(container) != len(values):
        return False
    if isinstance(container, dict):
        return all(key in container and container[key] is values[key] for key in values)
    return all(a is b for a, b in zip(container, values, strict=True))


@contextlib.contextmanager
def _same_process_state() -> Iterator[None]:
    """Random states, Keras's counters and TensorFlow's registry of gradients as they were."""
    eager = context.context()
    generator = getattr(eager, "_rng", None)
    eager_state = None if generator is None else generator.getstate()
    names = {
        name: (value, dict(value) if isinstance(value, dict) else None)
        for name, value in vars(global_state.GLOBAL_STATE_TRACKER).items()
    }
    # What an optimizer registers while it is traced would hold the graph, and with it all
    # variables, for the rest of the process.
    gradients = set(ops.gradient_registry.list())
    try:
        with own_draws():
            yield
    finally:
        if generator is not None:
            generator.setstate(eager_state)
        tracker = vars(global_state.GLOBAL_STATE_TRACKER)
        for name in set(tracker) - set(names):
            del tracker[name]
        for name, (value, copy) in names.items():
            if copy is not None:
                value.clear()
                value.update(copy)
            tracker[name] = value
        for name in set(ops.gradient_registry.list()) - gradients:
            del ops.gradient_registry._registry[name]
