"""One object's attribute, replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["shadowed"]


@contextlib.contextmanager
def shadowed(target: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute on one object for a while, past Keras's tracking."""
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        object.__delattr__(target, name)
