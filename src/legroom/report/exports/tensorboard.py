"""A run's events as TensorBoard shows them: memory over steps, slices, what happened."""

from __future__ import annotations

import os
import threading

from legroom.core.events import Event, MemorySampled, Planned, Progress, RanOut, WithBudget
from legroom.core.units import format_bytes
from legroom.report.exports.eventfile import EventFile, make_png
from legroom.report.screen.curve import squeezed

__all__ = ["TensorBoardLog"]

_WIDTH, _HEIGHT = 600, 200
_PAPER, _INK, _LIMIT = (255, 255, 255), (0, 114, 178), (213, 94, 0)
_PEAK = "memory/device_peak_MB"


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
        match event:
            case MemorySampled():
                self._sample(event)
            case Progress() if (event.peak_bytes or 0) > self.peak_bytes:
                # A step's own, higher than samples have seen.
                self.peak_bytes = event.peak_bytes or 0
                self._file.scalar(_PEAK, self.peak_bytes / 1e6, self._steps, event.at)
            case Planned(of_training=True):
                self.slices = event.slices
                self._file.scalar("legroom/slices", self.slices, self._steps, event.at)
                self._file.scalar("legroom/slice_size", event.slice_size, self._steps, event.at)
            case RanOut():
                self.ooms += 1
                self._file.scalar("legroom/out_of_memory", self.ooms, self._steps, event.at)
        if isinstance(event, WithBudget):
            self._limit = event.budget_bytes or self._limit
        if event.text:
            self._file.text("legroom/events", event.text, self._steps, event.at)

    def _sample(self, seen: MemorySampled) -> None:
        # TensorBoard forgets what comes after a step that is told again.
        self._steps = max(self._steps, seen.steps)
        self.peak_bytes = max(self.peak_bytes, seen.peak_bytes or 0)
        for tag, size in (
            ("memory/device_MB", seen.device_bytes),
            (_PEAK, seen.peak_bytes),
            ("memory/process_MB", seen.host_bytes),
        ):
            if size is not None:
                self._file.scalar(tag, size / 1e6, self._steps, seen.at)
        in_use = seen.host_bytes if seen.device_bytes is None else seen.device_bytes
        self._memory.append(float(in_use or 0))

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
