"""A run as a trace that Perfetto and Chrome open: memory as counters, events as marks.

The format is Chrome's Trace Event Format. Times are microseconds. The predicted step has no clock
of its own: there each op takes one microsecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from legroom.report.course import Course, read_course
from legroom.report.foreseen import PARTS, StepLine, read_foreseen
from legroom.report.run import RunReport

__all__ = ["chrome_trace"]

_RUN, _STEP = 1, 2


def chrome_trace(report: RunReport, name: str) -> str:
    """The trace of a run as JSON, for ui.perfetto.dev or chrome://tracing."""
    course, foreseen = read_course(report.events), read_foreseen(report.events)
    events: list[dict[str, Any]] = [*_run(course, name), *_step(foreseen.step)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False)


def _run(course: Course, name: str) -> Iterable[dict[str, Any]]:
    yield _named(_RUN, f"run of {name}")
    for at, device, host in zip(course.seconds, course.device, course.host, strict=True):
        if device is not None:
            yield _counter(_RUN, "device memory", at * 1e6, {"bytes": device})
        if host is not None:
            yield _counter(_RUN, "process memory", at * 1e6, {"bytes": host})
    for at, limit in course.limit:
        yield _counter(_RUN, "limit", at * 1e6, {"bytes": limit})
    for at, batch, size in course.slices:
        yield _counter(_RUN, "slices a batch", at * 1e6, {"slices": -(-batch // size)})
    for one in course.happenings:
        yield {"ph": "i", "s": "p", "pid": _RUN, "tid": 1, "ts": one.seconds * 1e6,
               "name": one.name, "args": {"text": one.text}}  # fmt: skip


def _step(step: StepLine) -> Iterable[dict[str, Any]]:
    if not step.total:
        return
    yield _named(_STEP, "one step, as predicted (an op is a microsecond)")
    for place, (op, layer, total) in enumerate(zip(step.ops, step.layers, step.total, strict=True)):
        yield {"ph": "X", "pid": _STEP, "tid": 1, "ts": place, "dur": 1, "name": op,
               "args": {"layer": layer, "bytes in use": total}}  # fmt: skip
        parts = dict(zip(PARTS, step.parts[place], strict=True)) if step.parts else {"all": total}
        yield _counter(_STEP, "memory", place, parts)


def _named(process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}


def _counter(process: int, name: str, at: float, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "pid": process, "tid": 1, "ts": at, "name": name, "args": values}
