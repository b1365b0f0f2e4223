"""A run as a trace: the same numbers, at the same times."""

from __future__ import annotations

import json
from typing import Any

from legroom.core.events import MemorySampled, Planned, Predicted, RanOut, RunStarted
from legroom.report.exports.chrometrace import chrome_trace
from legroom.report.run import RunReport


def counters(events: list[dict[str, Any]], process: int, name: str) -> list[tuple[float, Any]]:
    return [
        (event["ts"], event["args"])
        for event in events
        if event["ph"] == "C" and event["pid"] == process and event["name"] == name
    ]


def test_memory_events_and_the_step_are_in_the_trace() -> None:
    estimate = {"timeline": [["a/conv/op", 10], ["b", 30]],
                "parts": [[10, 0, 0, 0, 0, 0, 0], [10, 0, 0, 20, 0, 0, 0]]}  # fmt: skip
    report = RunReport.from_events([
        RunStarted(at=100),
        MemorySampled(at=101, device_bytes=5, host_bytes=7),
        RanOut("out of memory", at=101.5),
        Planned(at=101.5, batch_size=8, slice_size=4, slices=2, budget_bytes=9),
        Predicted(at=102, estimate=estimate),
    ])  # fmt: skip
    events = json.loads(chrome_trace(report, "train.py"))["traceEvents"]
    assert counters(events, 1, "device memory") == [(1e6, {"bytes": 5})]
    assert counters(events, 1, "process memory") == [(1e6, {"bytes": 7})]
    assert counters(events, 1, "limit") == [(1.5e6, {"bytes": 9})]
    assert counters(events, 1, "slices a batch") == [(1.5e6, {"slices": 2})]
    marks = [(one["name"], one["args"]["text"]) for one in events if one["ph"] == "i"]
    assert ("oom", "out of memory") in marks
    ops = [(one["ts"], one["name"]) for one in events if one["ph"] == "X"]
    assert ops == [(0, "a/conv/op"), (1, "b")]
    assert counters(events, 2, "memory")[1][1]["activations"] == 20
