"""Moments in which Ctrl-C waits: between giving arrays away and having what came of them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["uninterrupted"]

# Those that people and schedulers send, and whose handlers may raise.
_NUMBERS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Have Ctrl-C, and other signals that the script handles, wait until the end of the context."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in _NUMBERS}
    own = {number: handler for number, handler in handlers.items() if callable(handler)}
    asked: dict[int, Any] = {}

    def wait(number: int, frame: Any) -> None:
        asked.setdefault(number, frame)

    try:
        for number in own:
            signal.signal(number, wait)
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)
        with contextlib.ExitStack() as stack:  # all are told, and the first error is the one
            for number, frame in reversed(asked.items()):
                stack.callback(own[number], number, frame)
