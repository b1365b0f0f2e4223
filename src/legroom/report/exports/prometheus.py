"""A run's figures as Prometheus reads them. Pure."""

from __future__ import annotations

from legroom.core.events import (
    Event,
    MemorySampled,
    OfBatch,
    Planned,
    RanOut,
    Restarted,
    SnapshotTaken,
    WithBudget,
    WithPeak,
)

__all__ = ["RunMetrics"]

# Name, kind, help.
_METRICS = (
    ("device_bytes", "gauge", "Device memory in use, the most since the sample before."),
    ("device_peak_bytes", "gauge", "The most device memory in use so far."),
    ("budget_bytes", "gauge", "The device memory that the training may use."),
    ("process_bytes", "gauge", "Main memory of the training's process."),
    ("steps_total", "counter", "Steps that were run."),
    ("samples_total", "counter", "Samples that were trained on."),
    ("batch_size", "gauge", "The batch size."),
    ("slice_size", "gauge", "The size of the slices that a batch is run in."),
    ("out_of_memory_total", "counter", "How often memory ran out and the step was repeated."),
    ("restarts_total", "counter", "How often the script was started again."),
    ("snapshots_total", "counter", "Snapshots that were taken."),
)
_COUNTED: dict[type[Event], str] = {
    RanOut: "out_of_memory_total",
    Restarted: "restarts_total",
    SnapshotTaken: "snapshots_total",
}


class RunMetrics:
    """A listener that keeps the figures of a run."""

    def __init__(self) -> None:
        self._values: dict[str, float] = dict.fromkeys(_COUNTED.values(), 0)
        self._steps_before = self._samples_before = 0.0  # of processes that have ended

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        if counted := _COUNTED.get(type(event)):
            self._values[counted] += 1
        match event:
            case Restarted():
                self._steps_before = self._values.get("steps_total", 0)
                self._samples_before = self._values.get("samples_total", 0)
            case MemorySampled():
                self._set(
                    device_bytes=event.device_bytes,
                    process_bytes=event.host_bytes,
                    steps_total=self._steps_before + event.steps,
                    samples_total=self._samples_before + event.samples,
                )
            case Planned(of_training=True):
                self._set(slice_size=event.slice_size)
        if isinstance(event, WithPeak) and event.peak_bytes is not None:
            before = self._values.get("device_peak_bytes", 0)
            self._set(device_peak_bytes=max(before, event.peak_bytes))
        if isinstance(event, WithBudget):
            self._set(budget_bytes=event.budget_bytes)
        if isinstance(event, OfBatch):
            self._set(batch_size=event.batch_size)

    def _set(self, **known: float | None) -> None:
        """Take figures in, those that are known."""
        self._values.update({name: value for name, value in known.items() if value is not None})

    def text(self) -> str:
        """The figures in Prometheus's text format; what is not known is left out."""
        lines = []
        for name, kind, words in _METRICS:
            if name in self._values:
                full = f"legroom_{name}"
                lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}",
                          f"{full} {self._values[name]:.17g}"]  # fmt: skip
        return "\n".join(lines) + "\n"
