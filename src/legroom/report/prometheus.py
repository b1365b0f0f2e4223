"""A run's figures as Prometheus reads them. Pure."""

from __future__ import annotations

from legroom.core.events import Event

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
_COUNTED = {"oom": "out_of_memory_total", "restart": "restarts_total",
            "snapshot_taken": "snapshots_total"}  # fmt: skip
_GAUGES = {"device_bytes": "device_bytes", "host_bytes": "process_bytes"}


class RunMetrics:
    """A listener that keeps the figures of a run."""

    def __init__(self) -> None:
        self._values: dict[str, float] = dict.fromkeys(_COUNTED.values(), 0)
        self._before: dict[str, float] = {}  # what processes that have ended had counted

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        data, values = event.data, self._values
        if event.name in _COUNTED:
            values[_COUNTED[event.name]] += 1
        if event.name == "restart":
            for name in ("steps_total", "samples_total"):
                self._before[name] = values.get(name, 0)
        elif event.name == "memory":
            for key, name in _GAUGES.items():
                if data.get(key) is not None:
                    values[name] = data[key]
            for key in ("steps", "samples"):
                name = f"{key}_total"
                values[name] = self._before.get(name, 0) + (data.get(key) or 0)
        elif event.name == "plan" and data.get("subject", "batch") == "batch":
            values["slice_size"] = data["slice_size"]
        if data.get("peak_bytes") is not None:
            values["device_peak_bytes"] = max(
                values.get("device_peak_bytes", 0), data["peak_bytes"]
            )
        for key in ("budget_bytes", "batch_size"):
            if data.get(key) is not None:
                values[key] = data[key]

    def text(self) -> str:
        """The figures in Prometheus's text format; what is not known is left out."""
        lines = []
        for name, kind, words in _METRICS:
            if name in self._values:
                full = f"legroom_{name}"
                lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}",
                          f"{full} {self._values[name]:.17g}"]  # fmt: skip
        return "\n".join(lines) + "\n"
