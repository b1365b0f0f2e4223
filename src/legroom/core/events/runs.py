"""What happens to a whole run, in one process or several, and to its snapshots."""

from __future__ import annotations

import dataclasses

from legroom.core.events.event import Event

__all__ = [
    "IsolatedFinished",
    "IsolatedProgress",
    "Note",
    "OfSnapshot",
    "Restarted",
    "Resumed",
    "RunEnded",
    "RunStarted",
    "SnapshotTaken",
    "SnapshotWritten",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note(Event, name="note"):
    """Something worth a line.

    Attributes:
        layers: The layers that it is about, where slices change their results.
        left_out: Whether it says that a part of legroom is left out.
        signal: The signal that a training was stopped by.
    """

    layers: tuple[str, ...] = ()
    left_out: bool = False
    signal: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStarted(Event, name="run_started"):
    """A script was started for the first time."""

    script: str = ""
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restarted(Event, name="restart"):
    """A script was started again; with the slice and the signal that it died of before."""

    slice_size: int | None = None
    signal: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEnded(Event, name="run_ended"):
    """A script ended, with its exit code or the negative number of a signal."""

    code: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotTaken(Event, name="snapshot_taken"):
    """All that a training is was copied, and is now written to a file."""

    training: int | None = None
    file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfSnapshot(Event):
    """What tells of a snapshot on disk.

    Attributes:
        training: The number of the training.
        epoch: Where it was; None for a loop by hand.
        step: Where in the epoch; None for the result of a training.
        finished: Whether it is the result of a training.
        file: The file's name.
        seconds: How long it took to write, or to put back.
    """

    training: int | None = None
    epoch: int | None = None
    step: int | None = None
    finished: bool = False
    file: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotWritten(OfSnapshot, name="snapshot"):
    """A snapshot is on disk: its size, and how long the training waited for it."""

    bytes: int = 0
    copy_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumed(OfSnapshot, name="resumed"):
    """A training goes on from a snapshot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsolatedProgress(Event, name="isolated_progress"):
    """A function runs in a process of its own, whose main memory is ``peak_bytes`` at most."""

    function: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class IsolatedFinished(Event, name="isolated"):
    """A function has returned from a process of its own."""

    function: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
