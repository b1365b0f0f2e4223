"""What data remembers by itself: generators of random numbers, counters, orders.

A loader's sampler may draw from a generator of its own, or count epochs; a data set may keep an
order that it shuffles each time. Such attributes are taken by their path from the loader, and put
back into the same objects. What is large is the data itself, and not taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from legroom.backends.torch.state.arrays import as_array, as_tensor

__all__ = ["put_remembered", "remembered"]

_DEEPEST = 5
_MOST_ENTRIES = 64  # of a list that is looked into: transforms, not samples
# Bytes of an array that is taken: of an order, and of others; larger ones are the data itself.
_LARGEST_ORDER, _LARGEST = 2**23, 2**16
_OF_LOADER = ("generator", "batch_sampler", "sampler", "dataset")
# Objects of these packages are not looked into, unless they are data sets or samplers.
_FOREIGN = frozenset({"torch", "keras", "tensorflow", "numpy", "builtins", "collections", "legroom",
                      "pandas", "threading", "multiprocessing", "logging"})  # fmt: skip


class _Found(NamedTuple):
    """Something that data remembers: its value now, in plain values, and how it is put back."""

    path: str
    value: Callable[[], Any]
    put: Callable[[Any], None]


def remembered(data: Any) -> list[list[Any]]:
    """What data remembers now: paths, and values as they are now."""
    return [[found.path, found.value()] for found in _walk(data)]


def put_remembered(data: Any, kept: list[list[Any]]) -> None:
    """Have data remember what it did."""
    values = dict(kept)
    for found in list(_walk(data)):
        if found.path in values:
            found.put(values[found.path])


def _walk(data: Any) -> Iterator[_Found]:
    seen: set[int] = set()
    if isinstance(data, DataLoader):
        for name in _OF_LOADER:
            yield from _inside(data, name, getattr(data, name, None), name, seen, 0)
    elif _is_looked_into(data):
        yield from _attributes(data, "", seen, 0)


def _inside(
    owner: Any, name: str, value: Any, path: str, seen: set[int], depth: int
) -> Iterator[_Found]:
    """What there is to remember in an attribute."""
    if (generator := _generator(value, path)) is not None:
        if id(value) not in seen:
            seen.add(id(value))
            yield generator
    elif type(value) in (int, float):
        if not isinstance(owner, (list, tuple, DataLoader)):
            yield _Found(path, lambda: value, lambda new: setattr(owner, name, new))
    elif isinstance(value, (np.ndarray, torch.Tensor)):
        if not isinstance(owner, (list, tuple)):
            yield from _array(owner, name, value, path)
    elif depth < _DEEPEST and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, (list, tuple)) and len(value) <= _MOST_ENTRIES:
            for number, part in enumerate(value):
                yield from _inside(value, "", part, f"{path}.{number}", seen, depth + 1)
        elif _is_looked_into(value):
            yield from _attributes(value, path, seen, depth)


def _attributes(thing: Any, path: str, seen: set[int], depth: int) -> Iterator[_Found]:
    for name, value in list(vars(thing).items()):
        yield from _inside(thing, name, value, f"{path}.{name}", seen, depth + 1)


def _array(owner: Any, name: str, value: Any, path: str) -> Iterator[_Found]:
    is_tensor = isinstance(value, torch.Tensor)
    if is_tensor and (value.layout != torch.strided or value.requires_grad):
        return
    shown = as_array(value[:0] if value.ndim else value) if is_tensor else value
    is_order = shown.dtype.kind in "iu" and value.ndim == 1
    if shown.dtype.kind not in "biufcV" or shown.dtype.names is not None:
        return
    if value.nbytes > (_LARGEST_ORDER if is_order else _LARGEST):
        return

    def taken() -> Any:
        return np.array(as_array(value) if is_tensor else value, copy=True)

    def put(new: Any) -> None:
        if new.shape != tuple(value.shape):
            setattr(owner, name, as_tensor(new).to(value.device) if is_tensor else new)
        elif is_tensor:
            value.copy_(as_tensor(new))
        elif value.flags.writeable:
            value[...] = new

    yield _Found(path, taken, put)


def _generator(value: Any, path: str) -> _Found | None:
    """A generator of random numbers."""
    if isinstance(value, torch.Generator):

        def put(state: Any) -> None:
            value.set_state(as_tensor(state))

        return _Found(path, lambda: as_array(value.get_state()).copy(), put)
    if isinstance(value, random.Random):
        return _Found(path, value.getstate, value.setstate)
    if isinstance(value, np.random.RandomState):
        return _Found(path, value.get_state, value.set_state)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return _Found(path, lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _is_looked_into(value: Any) -> bool:
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    package = type(value).__module__.partition(".")[0]
    if isinstance(value, (Dataset, Sampler)):
        return package != "keras"  # Keras's own are made for each epoch, and hold the user's data
    return package not in _FOREIGN
