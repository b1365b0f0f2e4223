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


class _Training(threading.local):
    """Which training runs in this thread, as an object that stands for it; None where none does."""

    now: object | None = None


_training = _Training()
# Each with the training it is for; None for all of them.
_listeners: list[tuple[Listener, object | None]] = []
_lock = threading.Lock()


def emit(name: str, text: str = "", **data: Any) -> Event:
    """Tell all listeners that something happened, and return the event.

    What happens in a thread with a training of its own is not told to those who listen to another.
    """
    event = Event(name=name, text=text, data=data)
    here = _training.now
    for listener, training in tuple(_listeners):
        if training is None or here is None or here is training:
            listener(event)
    return event


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
