"""What a function can reach by its code: modules, optimizers, schedulers and loss scalers."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["reachable", "used_keras"]

_KINDS = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
_DEEPEST = 6
_MOST_ENTRIES = 1000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, torch.Tensor)


def used_keras() -> Any:
    """Keras, where it is imported and runs on PyTorch; None elsewhere."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "backend") or keras.backend.backend() != "torch":
        return None
    return keras


def reachable(function: Any, *others: Any) -> list[Any]:
    """The objects of these kinds that a function can reach, or that are among some others.

    Metrics and optimizers of Keras, too.
    """
    keras = used_keras()
    kinds = (
        *_KINDS,
        *(() if keras is None else (keras.metrics.Metric, keras.optimizers.Optimizer)),
    )
    found: dict[int, Any] = {}
    seen: set[int] = set()
    level = [function, *others]
    for _ in range(_DEEPEST):
        further: list[Any] = []
        for thing in level:
            if id(thing) in seen or isinstance(thing, _PLAIN):
                continue
            seen.add(id(thing))
            if isinstance(thing, kinds):
                found[id(thing)] = thing
            else:
                further += _inside(thing)
        level = further
    return list(found.values())


def _inside(thing: Any) -> Iterator[Any]:
    """What a thing leads to."""
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        if getattr(thing, "__module__", "").partition(".")[0] in ("torch", "keras", "legroom"):
            return
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue  # not set yet
        for name in _names(thing.__code__):
            if name in thing.__globals__:
                yield thing.__globals__[name]
        if inspect.unwrap(thing) is not thing:
            yield inspect.unwrap(thing)
    elif isinstance(thing, dict):
        yield from list(thing.values())[:_MOST_ENTRIES]
    elif isinstance(thing, (list, tuple, set)):
        yield from list(thing)[:_MOST_ENTRIES]
    elif hasattr(thing, "__dict__"):
        yield from list(vars(thing).values())[:_MOST_ENTRIES]


def _names(code: types.CodeType) -> set[str]:
    """The names that a function's code speaks of, with the functions inside of it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)
