"""RunReport: what a guarded run did, made from its events alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from legroom.core.events import Event
from legroom.core.records import Record

__all__ = ["RunReport"]


@dataclasses.dataclass(frozen=True)
class RunReport(Record):
    """The record of one training, or of all the trainings of a script.

    Attributes:
        events: Everything that happened, in order.
        ooms: How often memory ran out and the step was repeated.
        batch_size: The largest batch that was trained on, as the script asked for it.
        slice_size: The slice size in force at the end; the batch size where nothing was sliced.
        peak_bytes: The largest device memory seen in use, where the allocator tells.
        predicted_bytes: The peak that was predicted, before a step of the last slice size ran.
        budget_bytes: What the training was allowed to use, where a limit is known.
        samples_seen: Samples whose update is in the weights.
        samples_lost: Samples that were read and are in no update. Always 0, or something is wrong.
        oom_seconds: Time spent in steps that ran out of memory.
        restarts: How often the script was started again after it had died.
    """

    events: tuple[Event, ...] = dataclasses.field(default=(), repr=False)
    ooms: int = 0
    batch_size: int | None = None
    slice_size: int | None = None
    peak_bytes: int | None = None
    predicted_bytes: int | None = None
    budget_bytes: int | None = None
    samples_seen: int = 0
    samples_lost: int = 0
    oom_seconds: float = 0.0
    restarts: int = 0

    @property
    def sliced(self) -> bool:
        """Whether anything was run in slices."""
        return any(event.name == "plan" for event in self.events)

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> RunReport:
        """Make the report of what the events tell."""
        kept = tuple(events)
        report: dict[str, Any] = {"events": kept}
        samples_in: dict[str, int] = {}  # the weights of each snapshot
        for event in kept:
            data = event.data
            if event.name == "oom":
                report["ooms"] = report.get("ooms", 0) + 1
                report["oom_seconds"] = report.get("oom_seconds", 0.0) + data.get("seconds", 0.0)
            elif event.name == "plan" and data.get("subject", "batch") == "batch":
                report["slice_size"] = data["slice_size"]
            elif event.name == "progress":
                for key in ("samples_seen", "samples_lost"):
                    report[key] = report.get(key, 0) + data.get(key, 0)
            elif event.name == "restart":
                report["restarts"] = report.get("restarts", 0) + 1
                report["samples_seen"] = 0  # until what was kept is put back
            elif event.name == "snapshot_taken":
                samples_in[data.get("file", "")] = report.get("samples_seen", 0)
            elif event.name == "resumed":
                report["samples_seen"] = samples_in.get(data.get("file", ""), 0)
            for key, choose in (("peak_bytes", max), ("batch_size", max)):
                if data.get(key) is not None:
                    report[key] = choose(data[key], report.get(key) or 0)
            for key in ("budget_bytes", "predicted_bytes"):
                if data.get(key) is not None:
                    report[key] = data[key]
        if report.get("slice_size") is None:
            report["slice_size"] = report.get("batch_size")
        return cls(**report)
