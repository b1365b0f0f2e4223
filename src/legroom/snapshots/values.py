"""Plain values as JSON, and back: what callbacks, random generators and histories are made of.

Nothing is executed when values are read, so nothing but plain data can be written. JSON alone
would turn tuples into lists, keys into text and NumPy's scalars into Python's; what it can't say
is written with a tag. Arrays are not part of the JSON: they are put aside, and referred to.
"""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np

__all__ = ["Unstorable", "decode", "encode", "moved", "put_in_place"]

_TAG = "~"
_PLAIN = (bool, int, float, str, type(None))
_KINDS = "biufcV"  # of arrays; V are the small floats of machine learning
_DEEPEST = 20


class Unstorable(TypeError):
    """A value that is no plain data."""


def encode(value: Any, arrays: list[Any], _depth: int = 0) -> Any:
    """Turn a value into JSON.

    Args:
        value: Numbers, text, containers of them, arrays, generators of random numbers.
        arrays: Arrays are put here, and copied, because their owner goes on.

    Raises:
        Unstorable: If something else is met.
    """
    if _depth > _DEEPEST:
        raise Unstorable("nested too deeply, or in itself")

    def inner(part: Any) -> Any:
        return encode(part, arrays, _depth + 1)

    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [inner(part) for part in value]
    if kind is dict:
        if all(type(key) is str and key != _TAG for key in value):
            return {key: inner(part) for key, part in value.items()}
        return {_TAG: "dict", "items": [[inner(key), inner(part)] for key, part in value.items()]}
    if kind is tuple:
        return {_TAG: "tuple", "items": [inner(part) for part in value]}
    if kind in (set, frozenset):
        return {_TAG: kind.__name__, "items": [inner(part) for part in value]}
    if kind is complex:
        return {_TAG: "complex", "parts": [value.real, value.imag]}
    if kind is bytes:
        return {_TAG: "bytes", "base64": base64.b64encode(value).decode()}
    if kind is np.ndarray and value.dtype.kind in _KINDS and value.dtype.names is None:
        arrays.append(np.array(value, copy=True))
        return {_TAG: "array", "index": len(arrays) - 1}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS and value.dtype.names is None:
        arrays.append(np.asarray(value))
        return {_TAG: "scalar", "index": len(arrays) - 1}
    if kind is random.Random:
        return {_TAG: "Random", "state": inner(value.getstate())}
    if kind is np.random.RandomState:
        return {_TAG: "RandomState", "state": inner(value.get_state())}
    if kind is np.random.Generator:
        bits = value.bit_generator
        if hasattr(np.random, type(bits).__name__):
            return {_TAG: "Generator", "bits": type(bits).__name__, "state": inner(bits.state)}
    raise Unstorable(f"a {kind.__name__} is no plain value")


def decode(data: Any, arrays: list[Any]) -> Any:
    """Turn what `encode` made back into a value."""
    if isinstance(data, list):
        return [decode(part, arrays) for part in data]
    if not isinstance(data, dict):
        return data
    tag = data.get(_TAG)
    if tag is None:
        return {key: decode(part, arrays) for key, part in data.items()}
    if tag == "dict":
        return {decode(key, arrays): decode(part, arrays) for key, part in data["items"]}
    if tag in ("tuple", "set", "frozenset"):
        kind = {"tuple": tuple, "set": set, "frozenset": frozenset}[tag]
        return kind(decode(part, arrays) for part in data["items"])
    if tag == "complex":
        return complex(*data["parts"])
    if tag == "bytes":
        return base64.b64decode(data["base64"])
    if tag == "array":
        return np.array(arrays[data["index"]], copy=True)
    if tag == "scalar":
        return arrays[data["index"]][()]
    if tag in ("Random", "RandomState", "Generator"):
        return _generator(tag, data, decode(data["state"], arrays))
    raise ValueError(f"a value of unknown kind {tag!r}")


def moved(data: Any, by: int) -> Any:
    """Encoded values whose arrays have moved: they are so many places further back now."""
    if isinstance(data, list):
        return [moved(part, by) for part in data]
    if isinstance(data, dict):
        if data.get(_TAG) in ("array", "scalar"):
            return {**data, "index": data["index"] + by}
        return {key: moved(part, by) for key, part in data.items()}
    return data


def _generator(tag: str, data: dict[str, Any], state: Any) -> Any:
    if tag == "Random":
        made = random.Random()
        made.setstate(state)
        return made
    if tag == "RandomState":
        legacy = np.random.RandomState()
        legacy.set_state(state)
        return legacy
    if data["bits"] not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        raise ValueError(f"an unknown generator {data['bits']!r}")
    bits = getattr(np.random, data["bits"])()
    bits.state = state
    return np.random.Generator(bits)


def put_in_place(old: Any, new: Any) -> Any:
    """A new value, put into the old object where that can hold it: others may hold it too.

    Returns:
        What to use from now on: the old object with the new content, or the new one.
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        old[:] = [
            put_in_place(old[i], part) if i < len(old) else part for i, part in enumerate(new)
        ]
        return old
    if isinstance(old, dict):
        merged = {
            key: put_in_place(old[key], part) if key in old else part for key, part in new.items()
        }
        old.clear()
        old.update(merged)
        return old
    if isinstance(old, set):
        old.clear()
        old.update(new)
        return old
    if isinstance(old, np.ndarray) and old.shape == new.shape and old.dtype == new.dtype:
        if old.flags.writeable:
            old[...] = new
            return old
        return new
    if isinstance(old, random.Random):
        old.setstate(new.getstate())
        return old
    if isinstance(old, np.random.RandomState):
        old.set_state(new.get_state())
        return old
    if isinstance(old, np.random.Generator):
        if type(old.bit_generator) is type(new.bit_generator):
            old.bit_generator.state = new.bit_generator.state
            return old
        return new
    return new
