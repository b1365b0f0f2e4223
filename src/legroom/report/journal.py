"""The journal: every event as a line of JSON on disk, at once.

A process that is killed can't tell what it did; its journal can. The report of a run is made from
it, by whoever is still alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from legroom.core.events import Event

__all__ = ["Journal", "JournalTail", "read_journal"]


class Journal:
    """A listener that appends events to a file.

    Each event is one write to a file opened for appending, so that it is in the kernel's hands
    when the call returns, whatever kills the process next, and lines of several processes do not
    mix. A full disk ends the journal, not the training.

    Args:
        path: The file. Made if it is not there; continued if it is.

    Raises:
        OSError: If the file can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if _ends_in_the_middle(self._file):
            self._write(b"\n")  # what was cut stays alone on its line

    def __call__(self, event: Event) -> None:
        """Append one event."""
        with self._lock:
            if self._file >= 0:
                self._write(_line(event))

    def close(self) -> None:
        """Close the file. Later events are not written."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.write(self._file, data[written:])  # raises, with the reason
        except OSError:
            os.close(self._file)
            self._file = -1


def read_journal(path: str | os.PathLike[str]) -> list[Event]:
    """Read the events of a journal.

    A line that can't be read, as the last one of a process that died while writing, is passed
    over: what is left still tells what happened. No file is no events.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return list(_events(data))


class JournalTail:
    """Reads a journal while it grows.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._read = 0

    def new_events(self) -> list[Event]:
        """What was written since the last time, as far as lines are complete."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read += whole
        return list(_events(data[:whole]))


def _events(data: bytes) -> Iterator[Event]:
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError):  # not UTF-8, not JSON, not an event
            yield Event.from_json(line.decode())


def _line(event: Event) -> bytes:
    try:
        text = event.to_json()
    except (TypeError, ValueError):
        # Something that is no JSON slipped into the data. The event matters more than its types.
        text = json.dumps(event.to_dict(), default=str)
    return text.encode() + b"\n"


def _ends_in_the_middle(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
