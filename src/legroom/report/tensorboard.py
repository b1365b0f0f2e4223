"""A run's events as TensorBoard shows them: memory over steps, slices, what happened."""

from __future__ import annotations

import os
import threading

from legroom.core.events import Event
from legroom.core.units import format_bytes
from legroom.report.curve import squeezed
from legroom.report.eventfile import EventFile, make_png

__all__ = ["TensorBoardLog"]

_WIDTH, _HEIGHT = 600, 200
_PAPER, _INK, _LIMIT = (255, 255, 255), (0, 114, 178), (213, 94, 0)
_SAMPLES = {"device_bytes": "memory/device_MB", "peak_bytes": "memory/device_peak_MB",
            "host_bytes": "memory/process_MB"}  # fmt: skip


class TensorBoardLog:
    """A listener that writes events into a file for TensorBoard.

    Args:
        folder: TensorBoard's folder for this run.

    Attributes:
        peak_bytes: The most device memory that was told.
        slices: How many slices a batch is run in.
        ooms: How often memory ran out.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._file = EventFile(folder)
        self._steps = 0
        self._memory: list[float] = []
        self._limit: float | None = None
        self.peak_bytes = 0
        self.slices = 1
        self.ooms = 0

    def __call__(self, event: Event) -> None:
        """Write what an event tells; from any thread."""
        with self._lock:
            self._write(event)

    def _write(self, event: Event) -> None:
        data = event.data
        peak = data.get("peak_bytes") or 0
        if peak > self.peak_bytes:
            self.peak_bytes = peak
            if event.name != "memory":  # a step's own, higher than samples have seen
                tag = _SAMPLES["peak_bytes"]
                self._file.scalar(tag, peak / 1e6, self._steps, event.at)
        self._limit = data.get("budget_bytes") or self._limit
        if event.name == "memory":
            # TensorBoard forgets what comes after a step that is told again.
            self._steps = max(self._steps, int(data.get("steps") or 0))
            for key, tag in _SAMPLES.items():
                if data.get(key) is not None:
                    self._file.scalar(tag, data[key] / 1e6, self._steps, event.at)
            in_use = data.get("device_bytes")
            host = data.get("host_bytes") or 0
            self._memory.append(float(host if in_use is None else in_use))
        elif event.name == "plan" and data.get("subject", "batch") == "batch":
            self.slices = int(data["slices"])
            self._file.scalar("legroom/slices", self.slices, self._steps, event.at)
            self._file.scalar("legroom/slice_size", data["slice_size"], self._steps, event.at)
        elif event.name == "oom":
            self.ooms += 1
            self._file.scalar("legroom/out_of_memory", self.ooms, self._steps, event.at)
        if event.text:
            self._file.text("legroom/events", event.text, self._steps, event.at)

    def flush(self) -> None:
        """Have TensorBoard see what was written."""
        self._file.flush()

    def close(self) -> None:
        """Write the picture of the whole, and close the file."""
        if self._memory:
            png = make_png(_picture(self._memory, self._limit))
            most = f"memory/timeline (at most {format_bytes(max(self._memory))})"
            self._file.image(most, png, _WIDTH, _HEIGHT, self._steps)
        self._file.close()


def _picture(values: list[float], limit: float | None) -> list[list[tuple[int, int, int]]]:
    """Memory over time as a filled curve, with the limit as a line where it is near."""
    top = max(values) * 1.1 or 1.0
    if limit is not None and limit < 3 * top:
        top = max(top, limit * 1.05)
    columns = squeezed(values, _WIDTH)
    heights = [round(columns[x * len(columns) // _WIDTH] / top * _HEIGHT) for x in range(_WIDTH)]
    line = None if limit is None or limit > top else _HEIGHT - 1 - round(limit / top * _HEIGHT)
    return [
        [_LIMIT if y == line else _INK if _HEIGHT - y <= height else _PAPER for height in heights]
        for y in range(_HEIGHT)
    ]
