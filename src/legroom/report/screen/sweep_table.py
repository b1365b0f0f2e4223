"""A sweep in the terminal: the trials that run, and how far it is."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TextIO

from legroom.core.events import Event, TrialEnded
from legroom.core.units import format_bytes, format_seconds
from legroom.report.screen.area import LiveArea
from legroom.report.text import clean_line

__all__ = ["Row", "SweepPicture", "SweepTable", "table_lines"]

_WIDEST = 100
_MOST_ROWS = 16


@dataclasses.dataclass(frozen=True)
class Row:
    """A trial that runs.

    Attributes:
        number: Its number.
        config: What it is trained with, in a line.
        place: How far it is.
        cap_bytes: The memory it may take.
        seconds: How long it has run.
    """

    number: int
    config: str
    place: str
    cap_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class SweepPicture:
    """A sweep as it is now.

    Attributes:
        rows: What runs.
        done: How many trials have ended.
        waiting: How many wait; None where nobody knows.
        memory_bytes: What they share.
        free_bytes: What is free of it.
    """

    rows: tuple[Row, ...]
    done: int
    waiting: int | None
    memory_bytes: int
    free_bytes: int


def table_lines(picture: SweepPicture, columns: int, rows: int, *, left: float | None) -> list[str]:
    """The lines of the table, each shorter than the terminal is wide.

    Args:
        picture: What to show.
        columns: The terminal's width.
        rows: Its height.
        left: The seconds that the sweep should still take, where that is known.
    """
    width = min(_WIDEST, columns - 1)
    waiting = "" if picture.waiting is None else f", {picture.waiting} wait"
    given = picture.memory_bytes - picture.free_bytes
    head = (
        f"{picture.done} done, {len(picture.rows)} run{waiting} | "
        f"{format_bytes(given)} of {format_bytes(picture.memory_bytes)} given"
    )
    if left is not None:
        head += f" | about {format_seconds(left)} left"
    lines = [head]
    shown = picture.rows[: max(1, min(_MOST_ROWS, rows - 4))]
    for row in shown:
        facts = f"{row.place}, {format_bytes(row.cap_bytes)}, {format_seconds(row.seconds)}"
        lines.append(f"  {row.number:>5}  {facts:<34}  {clean_line(row.config)}")
    if len(shown) < len(picture.rows):
        lines.append(f"         and {len(picture.rows) - len(shown)} more")
    return [line if len(line) <= width else line[: width - 3] + "..." for line in lines]


class SweepTable:
    """Draws the table at the lower end of a terminal, with what happens above it; a listener.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._area = LiveArea(stream or sys.stderr)
        self._lines: list[str] = []
        self._began = time.monotonic()
        self._ended = 0

    def __call__(self, event: Event) -> None:
        """Print an event's text above the table."""
        self._ended += isinstance(event, TrialEnded)
        if event.text:
            self._area.draw(self._lines, f"legroom: {clean_line(event.text)}\n")

    def show(self, picture: SweepPicture) -> None:
        """Draw the table as the sweep is now."""
        left = None
        if self._ended and picture.waiting is not None:
            each = (time.monotonic() - self._began) / self._ended
            left = each * (picture.waiting + len(picture.rows) / 2)
        columns, rows = self._area.size()
        self._lines = table_lines(picture, columns, rows, left=left)
        self._area.draw(self._lines)

    def close(self) -> None:
        """Give the terminal back."""
        self._area.close()
