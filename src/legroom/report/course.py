"""The course of a run: its memory over time, its slices and its events, short enough to be drawn.

Made from events alone. Times are seconds since the first of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from legroom.core.events import (
    DidNotFit,
    Event,
    Found,
    MemorySampled,
    Note,
    Planned,
    RanOut,
    Restarted,
    Resumed,
    RunEnded,
    SnapshotTaken,
    WithBudget,
)
from legroom.core.series import thinned

__all__ = ["Course", "Happening", "read_course"]

_MOST_POINTS = 4000
# What is drawn on the curve and listed below it; all of them, however many there are.
_TOLD = (RanOut, Planned, Restarted, Resumed, DidNotFit, Note, Found, RunEnded)
# Where there are more of them, every so many-th is drawn.
_MOST_SNAPSHOTS = 300


@dataclasses.dataclass(frozen=True)
class Happening:
    """An event on the time line.

    Attributes:
        seconds: When, since the start.
        name: What kind.
        text: What is said of it.
    """

    seconds: float
    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class Course:
    """What is drawn of a run over time.

    Attributes:
        seconds: The times of the samples.
        device: The most device memory in use since the sample before; None where a process ended.
        host: The same of the process's main memory.
        limit: When a limit came into force, and its bytes.
        slices: When a plan came into force: seconds, batch size, slice size.
        happenings: What happened.
        samples_taken: How many samples there were before they were thinned.
        duration: Seconds from the first event to the last.
        steps: How many steps were run.
    """

    seconds: tuple[float, ...] = ()
    device: tuple[int | None, ...] = ()
    host: tuple[int | None, ...] = ()
    limit: tuple[tuple[float, int], ...] = ()
    slices: tuple[tuple[float, int, int], ...] = ()
    happenings: tuple[Happening, ...] = ()
    samples_taken: int = 0
    duration: float = 0.0
    steps: int = 0


def read_course(events: Sequence[Event]) -> Course:
    """Make the course of a run from its events."""
    if not events:
        return Course()
    start = events[0].at
    times: list[float] = []
    device: list[int | None] = []
    host: list[int | None] = []
    limits: list[tuple[float, int]] = []
    slices: list[tuple[float, int, int]] = []
    told: list[Happening] = []
    snapshots: list[Happening] = []
    breaks: list[int] = []
    steps = steps_before = 0
    for event in events:
        seconds = round(event.at - start, 3)
        match event:
            case MemorySampled():
                times.append(seconds)
                device.append(event.device_bytes)
                host.append(event.host_bytes)
                steps = event.steps
            case Restarted() if times:
                breaks.append(len(times))
                times.append(seconds)
                device.append(None)
                host.append(None)
                steps_before, steps = steps_before + steps, 0
            case Planned(of_training=True):
                slices.append((seconds, event.batch_size, event.slice_size))
            case SnapshotTaken():
                snapshots.append(Happening(seconds, event.name, _words(event)))
        limit = event.budget_bytes if isinstance(event, WithBudget) else None
        if limit is not None and (not limits or limits[-1][1] != limit):
            limits.append((seconds, limit))
        if isinstance(event, _TOLD):
            told.append(Happening(seconds, event.name, event.text or _words(event)))
    every = -(-len(snapshots) // _MOST_SNAPSHOTS) or 1
    shown = thinned([device, host], _MOST_POINTS, keep=breaks)
    return Course(
        seconds=tuple(times[place] for place in shown),
        device=tuple(device[place] for place in shown),
        host=tuple(host[place] for place in shown),
        limit=tuple(limits),
        slices=tuple(slices),
        happenings=tuple(
            sorted([*told, *snapshots[::every]], key=lambda happening: happening.seconds)
        ),
        samples_taken=len(times),
        duration=max(0.0, events[-1].at - start),
        steps=steps_before + steps,
    )


def _words(event: Event) -> str:
    """A line for an event that has none of its own."""
    match event:
        case Planned():
            size, slices = event.slice_size, event.slices
            how = "whole" if slices == 1 else f"as {slices} slices of {size}"
            return f"batch {event.batch_size} runs {how}"
        case SnapshotTaken():
            return f"snapshot {event.file}"
        case RunEnded(code=int(code)) if code < 0:
            return f"the script ended (killed by signal {-code})"
        case RunEnded():
            return f"the script ended (exit code {event.code})"
        case Found():
            return f"{event.finding.id} {event.finding.title}"
        case DidNotFit():
            return (event.data_text or "it does not fit").split("\n")[0]
        case Restarted():
            return "the script was started again"
    return event.name
