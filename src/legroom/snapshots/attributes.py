"""What an object remembers in its attributes: a callback's patience, a data set's order.

Callbacks have no common way to be saved. What they remember is, as a rule, plain data in their
attributes, so those are taken and put back; files, functions and the model itself are left as the
object's own start has made them.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from legroom.snapshots.values import Unstorable, decode, encode, put_in_place

__all__ = ["capture", "restore"]

_VARIABLE, _OBJECT, _VALUE = "variable", "object", "value"
_DEEPEST = 3
# Objects of these packages are not looked into: their state is taken elsewhere, or is not plain.
_FOREIGN = frozenset(
    {"keras", "tensorflow", "tf_keras", "numpy", "pandas", "builtins", "threading", "logging", "io",
     "_io", "multiprocessing", "concurrent", "queue", "pathlib", "weakref", "jax", "torch", "re"}
)  # fmt: skip
_NEVER = frozenset({"model", "_model", "params", "validation_data"})


def capture(
    thing: Any, arrays: list[Any], *, largest: int | None = None, _depth: int = 0
) -> dict[str, Any]:
    """Take the plain attributes of an object.

    Args:
        thing: The object.
        arrays: Arrays are put here.
        largest: Attributes with more bytes than this in arrays are passed over.
    """
    taken: dict[str, Any] = {}
    for name, value in _attributes(thing).items():
        if name in _NEVER:
            continue
        before = len(arrays)
        entry = _entry(value, arrays, largest, _depth)
        if entry is None or (
            largest is not None and sum(array.nbytes for array in arrays[before:]) > largest
        ):
            del arrays[before:]
            continue
        taken[name] = entry
    return taken


def restore(thing: Any, taken: dict[str, Any], arrays: list[Any]) -> None:
    """Put back what `capture` took; into the same lists and dicts, which others may hold."""
    for name, (kind, data) in taken.items():
        old = _attributes(thing).get(name)
        if kind == _OBJECT:
            if old is not None:
                restore(old, data, arrays)
        elif kind == _VARIABLE:
            if hasattr(old, "assign"):
                old.assign(decode(data, arrays))  # type: ignore[union-attr]
        else:
            new = decode(data, arrays)
            if old is None or not _same(old, new):
                object.__setattr__(thing, name, put_in_place(old, new))


def _entry(value: Any, arrays: list[Any], largest: int | None, depth: int) -> list[Any] | None:
    if _is_variable(value):
        return [_VARIABLE, encode(np.asarray(value.numpy()), arrays)]
    if largest is not None and getattr(value, "nbytes", 0) > largest:
        return None
    before = len(arrays)
    try:
        return [_VALUE, encode(value, arrays)]
    except Unstorable:
        del arrays[before:]
    if depth < _DEEPEST and _is_users_own(value):
        return [_OBJECT, capture(value, arrays, largest=largest, _depth=depth + 1)]
    return None


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def _is_variable(value: Any) -> bool:
    return (
        callable(getattr(value, "assign", None))
        and callable(getattr(value, "numpy", None))
        and hasattr(value, "dtype")
    )


def _is_users_own(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType)):
        return False
    module = type(value).__module__.partition(".")[0]
    return module not in _FOREIGN and bool(_attributes(value))


def _same(old: Any, new: Any) -> bool:
    """Whether nothing has to be put back: plain scalars only, others are put back anyway."""
    return type(old) is type(new) and isinstance(old, (int, str, bool)) and old == new
