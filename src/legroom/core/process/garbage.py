"""Python's garbage collector, put off for a while."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collected_later"]


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Put off the collector where many objects are made at once and nearly all of them live on.

    Each of its rounds would look through all that a framework holds, for nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
