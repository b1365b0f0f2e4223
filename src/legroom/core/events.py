"""Events: what happened in a run, told to whoever listens.

No floor prints by itself. It emits an event; the journal on disk and the live lines in the
terminal are listeners. The report of a run is made from its events alone, so a process that died
still has one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from legroom.core.records import Record

__all__ = ["Event", "Listener", "emit", "has_listener", "listening"]

Listener = Callable[["Event"], None]


@dataclasses.dataclass(frozen=True)
class Event(Record):
    """One thing that happened.

    Attributes:
        name: What kind of thing: ``"training_started"``, ``"oom"``, ``"plan"``, ``"note"``,
            ``"epoch"``, ``"cannot_fit"``, ``"training_finished"``; and what only reports read:
            ``"memory"``, ``"measured"``, ``"machine"``, ``"predicted"``, ``"input"``.
        text: One line for people, complete in itself. Empty where there is nothing to say.
        at: When, in seconds since the epoch.
        data: The same for machines: plain JSON types only.
    """

    name: str
    text: str = ""
    at: float = dataclasses.field(default_factory=time.time)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)


_listeners: list[Listener] = []
_lock = threading.Lock()


def emit(name: str, text: str = "", **data: Any) -> Event:
    """Tell all listeners that something happened, and return the event."""
    event = Event(name=name, text=text, data=data)
    for listener in tuple(_listeners):
        listener(event)
    return event


def has_listener(kind: type) -> bool:
    """Whether a listener of this kind is there already."""
    return any(isinstance(listener, kind) for listener in _listeners)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Listen to all events while the context lasts."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
