"""The course of a run: its memory over time, its slices and its events, short enough to be drawn.

Made from events alone. Times are seconds since the first of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.core.events import Event
from legroom.core.series import thinned

__all__ = ["Course", "Happening", "read_course"]

_MOST_POINTS = 4000
# What is drawn on the curve and listed below it; all of them, however many there are.
_TOLD = frozenset(
    {"oom", "plan", "restart", "resumed", "cannot_fit", "note", "finding", "run_ended"}
)
# These come with every snapshot: where there are too many, every so many-th is drawn.
_FREQUENT = frozenset({"snapshot_taken"})
_MOST_FREQUENT = 300


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
    frequent: list[Happening] = []
    breaks: list[int] = []
    steps = steps_before = 0
    for event in events:
        seconds, data = round(event.at - start, 3), event.data
        if event.name == "memory":
            times.append(seconds)
            device.append(data.get("device_bytes"))
            host.append(data.get("host_bytes"))
            steps = int(data.get("steps") or 0)
        elif event.name == "restart" and times:
            breaks.append(len(times))
            times.append(seconds)
            device.append(None)
            host.append(None)
            steps_before, steps = steps_before + steps, 0
        limit = data.get("budget_bytes")
        if limit is not None and (not limits or limits[-1][1] != limit):
            limits.append((seconds, int(limit)))
        if event.name == "plan" and data.get("subject", "batch") == "batch":
            slices.append((seconds, int(data["batch_size"]), int(data["slice_size"])))
        if event.name in _TOLD:
            told.append(Happening(seconds, event.name, event.text or _words(event)))
        elif event.name in _FREQUENT:
            frequent.append(Happening(seconds, event.name, event.text or _words(event)))
    every = -(-len(frequent) // _MOST_FREQUENT) or 1
    shown = thinned([device, host], _MOST_POINTS, keep=breaks)
    return Course(
        seconds=tuple(times[place] for place in shown),
        device=tuple(device[place] for place in shown),
        host=tuple(host[place] for place in shown),
        limit=tuple(limits),
        slices=tuple(slices),
        happenings=tuple(
            sorted([*told, *frequent[::every]], key=lambda happening: happening.seconds)
        ),
        samples_taken=len(times),
        duration=max(0.0, events[-1].at - start),
        steps=steps_before + steps,
    )


def _words(event: Event) -> str:
    """A line for an event that has none of its own."""
    data = event.data
    if event.name == "plan":
        batch, size, slices = (data.get(key) for key in ("batch_size", "slice_size", "slices"))
        how = "whole" if slices == 1 else f"as {slices} slices of {size}"
        return f"batch {batch} runs {how}"
    if event.name == "snapshot_taken":
        return f"snapshot {data.get('file', '')}"
    if event.name == "run_ended":
        return f"the script ended ({_code(data.get('code'))})"
    if event.name == "finding":
        found: Any = data.get("finding") or {}
        return f"{found.get('id', '')} {found.get('title', '')}"
    if event.name == "cannot_fit":
        return str(data.get("data_text", "it does not fit")).split("\n")[0]
    return {"restart": "the script was started again"}.get(event.name, event.name)


def _code(code: Any) -> str:
    if isinstance(code, int) and code < 0:
        return f"killed by signal {-code}"
    return f"exit code {code}"
