"""What a user's own variables lead to: names for what is held, and what no container holds.

A tensor may hang on a chain of objects, on a function that remembers its results, or be one that
itself grows. So each variable of the user's running functions and modules is followed, through the
user's own objects and Python's containers, to what weighs something.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from legroom.doctor.growing.amounts import Held, Weigh
from legroom.doctor.growing.loops import is_users_file

__all__ = ["grown_roots", "is_users_type", "path_to", "weigh_roots"]

_MOST = 20_000  # objects that are looked at behind one variable
_ATOMS = (int, float, complex, str, bytes, bool, type(None), types.ModuleType, types.CodeType,
          types.FrameType, types.BuiltinFunctionType)  # fmt: skip
_REMEMBERING = type(functools.lru_cache(lambda: None))


def weigh_roots(frames: Iterable[types.FrameType], weigh: Weigh) -> dict[str, Held]:
    """What each variable of the user's leads to, by its name.

    Args:
        frames: The user's functions that are running.
        weigh: Knows what objects weigh.
    """
    found = {}
    for name, value in _variables(frames):
        held = _weighed(value, weigh)
        if held is not None and name not in found:
            found[name] = held
    return found


def grown_roots(
    before: dict[str, Held], now: dict[str, Held], iterations: float
) -> list[tuple[str, Held]]:
    """The variables that lead to more than before; the heaviest first.

    Args:
        before: What they led to.
        now: What they lead to now.
        iterations: How many iterations lie between.
    """
    grown = []
    for name, held in now.items():
        old = before.get(name, Held(held.kind, 0, 0))
        new = Held(held.kind, held.count - old.count, held.bytes - old.bytes)
        if new.bytes > 0 or new.count >= 0.5 * iterations:
            grown.append((name, new))
    return sorted(grown, key=lambda item: (-item[1].bytes, -item[1].count))


def path_to(identity: int, frames: Iterable[types.FrameType]) -> str:
    """How the user reaches an object, ``agent.log["loss"]``; empty where no variable leads to it.

    Args:
        identity: The object's.
        frames: The user's functions that are running.
    """
    todo = collections.deque(_variables(frames))
    seen: set[int] = set()
    while todo and len(seen) < _MOST:
        path, value = todo.popleft()
        if id(value) == identity:
            return path
        if id(value) not in seen and not isinstance(value, _ATOMS):
            seen.add(id(value))
            with contextlib.suppress(Exception):
                todo.extend((path + step, inner) for step, inner in _inside(value))
    return ""


def is_users_type(kind: type) -> bool:
    """Whether a class is of the user's own files."""
    return _is_users_module(str(kind.__module__))


@functools.cache
def _is_users_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or (file is not None and is_users_file(str(file)))


def _variables(frames: Iterable[types.FrameType]) -> Iterator[tuple[str, Any]]:
    """The variables of the user's functions, then those of the user's modules."""
    for frame in frames:
        yield from _named(frame.f_locals)
    for name, module in list(sys.modules.items()):
        if _is_users_module(name):
            yield from _named(vars(module))


def _named(variables: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(variables.items()):
        if not name.startswith("__") and not isinstance(value, _ATOMS):
            yield name, value


def _weighed(root: Any, weigh: Weigh) -> Held | None:
    counts: collections.Counter[str] = collections.Counter()
    weights: collections.Counter[str] = collections.Counter()
    seen: set[int] = set()
    todo = [root]
    while todo and len(seen) < _MOST:
        value = todo.pop()
        if id(value) in seen or isinstance(value, _ATOMS):
            continue
        seen.add(id(value))
        weight = weigh(value)
        if weight is not None:
            counts[weight[0]] += 1
            weights[weight[0]] += weight[1]
            continue
        with contextlib.suppress(Exception):
            todo += [inner for _, inner in _inside(value)]
    if not counts:
        return None
    kind = max(counts, key=lambda name: (weights[name], counts[name]))
    return Held(kind, counts[kind], sum(weights.values()))


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with how it is written; nothing for a library's own objects."""
    if isinstance(value, dict):
        for key, inner in list(value.items()):
            yield f"[{key!r}]" if isinstance(key, (str, int)) else "[…]", inner
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        for number, inner in enumerate(list(value)):
            yield f"[{number}]", inner
    elif isinstance(value, types.FunctionType):
        if is_users_file(value.__code__.co_filename):
            for cell, name in zip(
                value.__closure__ or (), value.__code__.co_freevars, strict=False
            ):
                with contextlib.suppress(ValueError):  # a cell that is empty
                    yield f"()'s {name}", cell.cell_contents
            for inner in value.__defaults__ or ():
                yield "()'s default", inner
            for name, inner in list(vars(value).items()):
                yield f".{name}", inner
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None:
            yield from ((f"'s {name}", inner) for name, inner in _named(value.gi_frame.f_locals))
    elif isinstance(value, BaseException):
        yield ".args", value.args
        for frame in _failed_frames(value):
            yield from (
                (f".__traceback__'s {name}", inner) for name, inner in _named(frame.f_locals)
            )
    elif isinstance(value, _REMEMBERING):
        for inner in gc.get_referents(value):
            yield "()'s cache", inner
    elif isinstance(value, type):
        if is_users_type(value):
            yield from ((f".{name}", inner) for name, inner in _named(vars(value)))
    elif is_users_type(type(value)):
        yield from ((f".{name}", inner) for name, inner in _named(getattr(value, "__dict__", {})))


def _failed_frames(error: BaseException) -> Iterator[types.FrameType]:
    """The frames that an error holds, but for those that are running: these hold themselves."""
    running = set()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        running.add(frame)
        frame = frame.f_back
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame not in running:
            yield trace.tb_frame
        trace = trace.tb_next
