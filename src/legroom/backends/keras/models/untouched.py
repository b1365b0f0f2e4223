"""Running a user's model on trial without leaving a mark on it.

A training step changes what it touches: an optimizer is built and gets its slots, metrics and
losses are built, layers are, names are counted up, random seeds are drawn. Inside `untouched` all
of that may happen, and afterwards none of it has. Values of variables are not looked after: a
framework traces its step, or gives variables other values for the while.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.utils.tracking import Tracker

from legroom.backends.keras.slices.own_draws import own_draws

__all__ = ["untouched"]

# What Keras keeps of itself and a step may change. Nodes, tensors and variables are not among
# them: a step makes new ones, and leaves those that were there.
_OURS = (keras.Layer, keras.Metric, keras.Optimizer, keras.Loss, keras.random.SeedGenerator,
         Tracker)  # fmt: skip


@contextlib.contextmanager
def untouched(*roots: Any, kinds: tuple[type, ...] = ()) -> Iterator[None]:
    """Put back everything that happens to these models, and around them, inside.

    Args:
        roots: Models, or whatever holds layers, optimizers and metrics.
        kinds: The framework's own kinds of objects whose attributes are put back, too.
    """
    objects, containers = _reachable(roots, (*_OURS, *kinds))
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


def _reachable(roots: Any, kinds: tuple[type, ...]) -> tuple[list[Any], list[Any]]:
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
        if isinstance(thing, kinds):
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
    """Random states and Keras's counters as they were."""
    names = {
        name: (value, _copied(value) if isinstance(value, (dict, list)) else None)
        for name, value in vars(global_state.GLOBAL_STATE_TRACKER).items()
    }
    try:
        with own_draws():
            yield
    finally:
        tracker = vars(global_state.GLOBAL_STATE_TRACKER)
        for name in set(tracker) - set(names):
            del tracker[name]
        for name, (value, copy) in names.items():
            if copy is not None:
                _refill(value, copy)
            tracker[name] = value
