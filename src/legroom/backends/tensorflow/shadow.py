"""An attribute that is another one for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["replaced", "shadowed"]


@contextlib.contextmanager
def shadowed(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute on one object, over that of its class, past Keras's tracking."""
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        object.__delattr__(target, name)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something else in the place of a function of a module or class."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
