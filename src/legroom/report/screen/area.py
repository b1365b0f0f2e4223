"""The lower lines of a terminal, drawn again and again, and given back as they were.

Only lines are used that the area itself has made: it moves up over them, erases them and draws
anew. No other mode of the terminal is changed, not even its cursor, so that whatever ends the
process, the terminal is as it was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TextIO

__all__ = ["LiveArea", "can_draw_on"]


def can_draw_on(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that lines can be drawn in again and again."""
    if os.environ.get("TERM") == "dumb" or os.name != "posix":
        return False
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


class LiveArea:
    """Lines at the lower end of a terminal, below what is printed.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: list[str] = []

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal now."""
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return columns or 80, rows or 24  # some terminals call themselves 0 x 0

    def draw(self, lines: Sequence[str], above: str = "") -> None:
        """Draw the lines anew, and print something above them first.

        Args:
            lines: Each shorter than the terminal is wide.
            above: Whole lines, which stay.
        """
        # In one write, so that nobody sees it half done.
        text = self._erased() + above + "".join(f"{line}\n" for line in lines)
        self._drawn = list(lines)
        self._write(text)

    def close(self, above: str = "") -> None:
        """Give the lines back."""
        self._write(self._erased() + above)
        self._drawn = []

    def _erased(self) -> str:
        if not self._drawn:
            return ""
        columns, _ = self.size()
        # A terminal that has become narrower has broken the lines that are too long now.
        rows = sum(max(1, -(-len(line) // columns)) for line in self._drawn)
        return f"\x1b[{rows}F\x1b[J"

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody looks any more
            self._stream.write(text)
            self._stream.flush()
