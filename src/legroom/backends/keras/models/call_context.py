"""What Keras keeps about the call that is under way, taken along to a later time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keras.src.backend.common import global_state

__all__ = ["CallContext"]

# Whether it trains, and in which precision.
_NAMES = ("current_call_ctx", "autocast_scope")


class CallContext:
    """Keras's own context as it is now."""

    def __init__(self) -> None:
        self._values = {name: global_state.get_global_attribute(name) for name in _NAMES}

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Have it hold for a while."""
        before = CallContext()
        self._set()
        try:
            yield
        finally:
            before._set()

    def _set(self) -> None:
        for name, value in self._values.items():
            global_state.set_global_attribute(name, value)
