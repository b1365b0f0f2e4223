"""RunReport: what a guarded run did, made from its events alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from legroom.core.events import (
    Event,
    Measured,
    OfBatch,
    Planned,
    Progress,
    RanOut,
    Restarted,
    Resumed,
    SnapshotTaken,
    WithBudget,
    WithPeak,
)
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
        return any(isinstance(event, Planned) for event in self.events)

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> RunReport:
        """Make the report of what the events tell."""
        kept = tuple(events)
        ooms = restarts = seen = lost = 0
        oom_seconds = 0.0
        batch = size = peak = predicted = budget = None
        samples_in: dict[str, int] = {}  # the weights of each snapshot
        for event in kept:
            match event:
                case RanOut():
                    ooms += 1
                    oom_seconds += event.seconds
                case Planned(of_training=True):
                    size = event.slice_size
                case Progress():
                    seen += event.samples_seen
                    lost += event.samples_lost
                case Restarted():
                    restarts += 1
                    seen = 0  # until what was kept is put back
                case SnapshotTaken():
                    samples_in[event.file] = seen
                case Resumed():
                    seen = samples_in.get(event.file, 0)
            if isinstance(event, OfBatch) and event.batch_size is not None:
                batch = max(event.batch_size, batch or 0)
            if isinstance(event, WithPeak) and event.peak_bytes is not None:
                peak = max(event.peak_bytes, peak or 0)
            if isinstance(event, (Progress, Measured)) and event.predicted_bytes is not None:
                predicted = event.predicted_bytes
            if isinstance(event, WithBudget) and event.budget_bytes is not None:
                budget = event.budget_bytes
        return cls(
            events=kept,
            ooms=ooms,
            batch_size=batch,
            slice_size=batch if size is None else size,
            peak_bytes=peak,
            predicted_bytes=predicted,
            budget_bytes=budget,
            samples_seen=seen,
            samples_lost=lost,
            oom_seconds=oom_seconds,
            restarts=restarts,
        )
