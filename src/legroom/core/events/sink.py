"""The sink: an event is emitted into it, and told to whoever listens.

No floor prints by itself. It emits an event; the journal on disk and the live lines in the
terminal are listeners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from legroom.core.events.event import Event

__all__ = ["Listener", "emit", "has_listener", "is_heard", "listening"]

Listener = Callable[[Event], None]


class _Training(threading.local):
    """Which training runs in this thread, as an object that stands for it; None where none does."""

    now: object | None = None


_training = _Training()
# Each with the training it is for; None for all of them.
_listeners: list[tuple[Listener, object | None]] = []
_lock = threading.Lock()


def emit(event: Event) -> None:
    """Tell all listeners that something happened.

    What happens in a thread with a training of its own is not told to those who listen to another.
    """
    here = _training.now
    for listener, training in tuple(_listeners):
        if training is None or here is None or here is training:
            listener(event)


def is_heard() -> bool:
    """Whether anybody listens to what happens in this thread."""
    here = _training.now
    return any(training in (None, here) or here is None for _, training in _listeners)


def has_listener(kind: type) -> bool:
    """Whether a listener of this kind is there already."""
    return any(isinstance(listener, kind) for listener, _ in _listeners)


@contextlib.contextmanager
def listening(listener: Listener, *, own: bool = False) -> Iterator[None]:
    """Listen to events while the context lasts.

    Args:
        listener: Called with each event.
        own: Listen to the training that this thread runs in the context, and to what belongs to no
            training, but not to trainings of other threads. Within another such context it is that
            one's training.
    """
    before = _training.now
    if own and before is None:
        _training.now = object()
    entry = (listener, _training.now if own else None)
    with _lock:
        _listeners.append(entry)
    try:
        yield
    finally:
        _training.now = before
        with _lock:
            _listeners.remove(entry)
