"""Attributes and functions that are others for a while."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["replaced", "shadowed"]

_ABSENT = object()


@contextlib.contextmanager
def shadowed(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute on one object, over that of its class, past Keras's tracking.

    What the object itself had under this name, also from another shadow, comes back.
    """
    own = vars(target)
    before = own.get(name, _ABSENT)
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            object.__delattr__(target, name)
        else:
            object.__setattr__(target, name, before)


class _Stacks(threading.local):
    """What this thread has put in the place of functions, and how deep a call is in it."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, str], list[Any]] = {}
        self.depth: dict[tuple[int, str], int] = {}


_stacks = _Stacks()
_lock = threading.Lock()
_originals: dict[tuple[int, str], tuple[Any, int]] = {}  # and in how many places it is replaced


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Put something else in the place of a function of a module or class, in this thread.

    Other threads go on with the original: a training in another thread is none of our business.
    """
    key = id(owner), name
    with _lock:
        if key not in _originals:
            _originals[key] = vars(owner).get(name, getattr(owner, name)), 0
            setattr(owner, name, _dispatcher(key, getattr(owner, name)))
        original, count = _originals[key]
        _originals[key] = original, count + 1
    stack = _stacks.of.setdefault(key, [])
    stack.append(value)
    _stacks.depth[key] = len(stack)
    try:
        yield
    finally:
        stack.pop()
        _stacks.depth[key] = len(stack)
        with _lock:
            original, count = _originals[key]
            _originals[key] = original, count - 1
            if count == 1:
                setattr(owner, name, original)
                del _originals[key]


def _dispatcher(key: tuple[int, str], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        depth = _stacks.depth.get(key, 0)
        if not depth:
            return original(*args, **kwargs)
        # What stands in calls what it stands in for, which is the one below.
        _stacks.depth[key] = depth - 1
        try:
            return _stacks.of[key][depth - 1](*args, **kwargs)
        finally:
            _stacks.depth[key] = depth

    return dispatch
