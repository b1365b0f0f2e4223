"""What a function can reach by its code: modules, optimizers, schedulers and loss scalers.

Generators of random numbers, too.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from legroom.backends.careful import is_users_file

__all__ = ["calls_of", "reachable", "used_keras"]

_KINDS = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler,
          torch.Generator)  # fmt: skip
_DEEPEST = 6
_MOST_ENTRIES = 1000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor)


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
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
        names = _names(thing.__code__)
        for name in names:
            found = thing.__globals__.get(name)
            if not isinstance(found, types.ModuleType):
                yield found
            elif _is_users_module(found):
                yield from (vars(found)[one] for one in names if one in vars(found))
        if inspect.unwrap(thing) is not thing:
            yield inspect.unwrap(thing)
    elif isinstance(thing, dict):
        yield from list(thing.values())[:_MOST_ENTRIES]
    elif isinstance(thing, (list, tuple, set)):
        yield from list(thing)[:_MOST_ENTRIES]
    elif not isinstance(thing, types.ModuleType):
        if hasattr(thing, "__dict__"):
            yield from list(vars(thing).values())[:_MOST_ENTRIES]
        for kind in type(thing).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                yield getattr(thing, name, None)


def _is_users_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or is_users_file(file)


def _names(code: types.CodeType) -> set[str]:
    """The names that a function's code speaks of, with the functions inside of it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def calls_of(name: str, function: Any, things: Iterable[Any]) -> int:
    """How often the code of a function calls a method of this name.

    Args:
        name: The name.
        function: The function; other functions of the user's that it calls count as well.
        things: Objects whose methods it may call.
    """
    things = list(things)
    seen: set[types.CodeType] = set()
    level = [inspect.unwrap(function)]
    for _ in range(_DEEPEST):
        further: list[Any] = []
        for one in level:
            one = getattr(one, "__func__", one)
            code = getattr(one, "__code__", None)
            if code is None or code in seen or not is_users_file(code.co_filename):
                continue
            seen.add(code)
            further += _inside(one)
            further += [getattr(type(x), found, None) for x in things for found in _names(code)]
        level = [x for x in further if isinstance(x, (types.FunctionType, types.MethodType))]
    return sum(_count(name, code) for code in seen)


def _count(name: str, code: types.CodeType) -> int:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    asked = [step for step in dis.get_instructions(code) if step.argval == name]
    own = [step for step in asked if step.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    return len(own) + sum(_count(name, part) for part in inner)
