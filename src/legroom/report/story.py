"""A run told in three sentences, and in its few most asked-for figures."""

from __future__ import annotations

import dataclasses
import signal

from legroom.core.events import (
    DidNotFit,
    Restarted,
    RunEnded,
    RunStarted,
    TrainingFinished,
    TrainingStarted,
)
from legroom.core.units import format_bytes, format_seconds
from legroom.report.course import Course
from legroom.report.foreseen import Foreseen
from legroom.report.run import RunReport

__all__ = ["Figure", "figures", "format_count", "outcome", "story"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        key: What it is called in data.
        label: What it is called on the page.
        value: The figure itself; None where it is unknown.
        shown: As it is written for people.
    """

    key: str
    label: str
    value: float | None
    shown: str


def outcome(report: RunReport) -> tuple[str, str]:
    """How a run ended: "good", "bad" or "open", and in words."""
    code: int | None = None
    ended = misfit = False
    for event in report.events:
        match event:
            case RunStarted() | Restarted() | TrainingStarted():
                ended, code = False, None
            case RunEnded():
                ended, code = True, event.code
            case TrainingFinished():
                ended, code = True, 0
            case DidNotFit():
                misfit = True
    if misfit:
        return "bad", "ended because it does not fit"
    if not ended or code is None:
        return "open", "did not end: it was killed, or still runs"
    if code == 0:
        return "good", "finished"
    if code < 0:
        return "bad", f"was killed by {_signal(-code)}"
    return "bad", f"failed with exit code {code}"


def story(report: RunReport, course: Course, foreseen: Foreseen, name: str) -> list[str]:
    """What happened, what memory did, and what holds it."""
    _, ended = outcome(report)
    batch = f" on batches of {report.batch_size}" if report.batch_size else ""
    first = f"{name} trained{batch} for {format_seconds(course.duration)} and {ended}."
    return [first, _memory(report), _held(report, foreseen)]


def _memory(report: RunReport) -> str:
    parts = []
    if report.peak_bytes is not None:
        of = ""
        if report.budget_bytes:
            share = report.peak_bytes / report.budget_bytes
            of = f" of the {format_bytes(report.budget_bytes)} it may use ({share:.0%})"
        parts.append(f"At most {format_bytes(report.peak_bytes)} were in use on the device{of}")
    else:
        parts.append("The device does not tell how much of its memory was in use")
    if report.ooms:
        times = "once" if report.ooms == 1 else f"{report.ooms} times"
        spent = format_seconds(report.oom_seconds)
        parts.append(f"memory ran out {times}, which took {spent} and lost nothing")
    else:
        parts.append("memory never ran out")
    size, batch = report.slice_size, report.batch_size
    if report.sliced and size and batch and size < batch:
        up_to = "up to " if batch % size else ""
        parts.append(f"batches ran as {-(-batch // size)} slices of {up_to}{size}")
    if report.restarts:
        times = "once" if report.restarts == 1 else f"{report.restarts} times"
        parts.append(f"the script was started again {times}")
    return "; ".join(parts) + "."


def _held(report: RunReport, foreseen: Foreseen) -> str:
    seen = format_count(report.samples_seen)
    lost = "none was lost" if not report.samples_lost else f"{report.samples_lost} were lost"
    estimate = foreseen.estimate
    if estimate is None:
        return f"{seen} samples are in the weights, and {lost}."
    kind, size = max(estimate["breakdown"].items(), key=lambda item: item[1])
    largest = ""
    if estimate.get("layers"):
        layer, held = estimate["layers"][0]
        largest = f", and the largest layer is {layer} with {format_bytes(held)}"
    whole = f"a whole batch of {estimate['batch_size']} would take"
    return (
        f"As predicted, {whole} {format_bytes(estimate['peak_bytes'])}: most of it "
        f"{kind} ({format_bytes(size)}){largest}."
    )


def figures(report: RunReport, course: Course) -> list[Figure]:
    """The figures of a run that are asked for most."""
    size = report.slice_size
    rate = report.samples_seen / course.duration if course.duration > 0 else None
    return [
        _bytes("peak_bytes", "peak on the device", report.peak_bytes),
        _bytes("budget_bytes", "allowed", report.budget_bytes),
        _bytes("host_peak_bytes", "peak of main memory", _most(course.host)),
        _count("ooms", "ran out of memory", report.ooms),
        Figure("oom_seconds", "time lost to that", report.oom_seconds,
               format_seconds(report.oom_seconds)),
        _count("restarts", "started again", report.restarts),
        _count("batch_size", "batch", report.batch_size),
        _count("slice_size", "slice", size),
        _count("samples_seen", "samples seen", report.samples_seen),
        _count("samples_lost", "samples lost", report.samples_lost),
        Figure("duration", "time", course.duration, format_seconds(course.duration)),
        Figure("rate", "samples a second", rate, "unknown" if rate is None else f"{rate:.3g}"),
    ]  # fmt: skip


def format_count(value: int) -> str:
    """A number with its thousands set apart, and not broken over lines."""
    return f"{value:,}".replace(",", "\N{NO-BREAK SPACE}")


def _most(values: tuple[int | None, ...]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _bytes(key: str, label: str, value: int | None) -> Figure:
    return Figure(key, label, value, "unknown" if value is None else format_bytes(value))


def _count(key: str, label: str, value: int | None) -> Figure:
    return Figure(key, label, value, "unknown" if value is None else format_count(value))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
