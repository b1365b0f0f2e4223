"""A fingerprint of the code that a sweep runs: has it been edited since?"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["code_of_function"]

_SIMPLE = (bool, int, float, str, bytes, type(None))


def code_of_function(function: Callable[..., Any]) -> str:
    """A fingerprint of a function, and of those of its own module that it uses.

    Not of the file: adding a config below the function makes no other sweep. Where lines begin and
    what comments say is not part of it.
    """
    words = "\n".join(_words(function, set()))
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]


def _words(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        yield from _words(code, seen)
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()):
            yield from _words(default, seen)
        for cell in value.__closure__ or ():
            try:
                yield from _words(cell.cell_contents, seen)
            except ValueError:  # nothing in it yet
                continue
        for name in sorted(_names(code)):
            used = value.__globals__.get(name)
            own = getattr(used, "__module__", None) == value.__module__
            if isinstance(used, _SIMPLE) or (own and callable(used)):
                yield name
                yield from _words(used, seen)
    elif isinstance(value, types.CodeType):
        yield value.co_code.hex()
        yield from value.co_names
        for constant in value.co_consts:
            yield from _words(constant, seen)
    elif isinstance(value, _SIMPLE):
        yield repr(value)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield repr(key)
            yield from _words(value[key], seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _words(item, seen)
    elif isinstance(value, type):
        for name, member in sorted(vars(value).items()):
            if callable(member) or isinstance(member, _SIMPLE):
                yield name
                yield from _words(member, seen)
    elif callable(value):  # a partial, or an object that can be called
        for part in ("func", "args", "keywords"):
            yield from _words(getattr(value, part, None), seen)
        yield from _words(type(value).__call__, seen)


def _names(code: types.CodeType) -> set[str]:
    """The names that a code uses, and those in it."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
