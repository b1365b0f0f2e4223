"""A terminal shared by a child's output and a live panel below it.

The child writes to a terminal of its own, made for it; what it writes is printed above the panel,
line by line. A line that is not finished (a progress bar that is drawn again and again) is shown at
the panel's upper edge until it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from legroom.report.screen.area import LiveArea, can_draw_on
from legroom.report.screen.panel import LivePanel, panel_lines
from legroom.report.text import clean_line

__all__ = ["Screen", "can_draw"]

_READ = 2**16
_OUTPUT_EVERY = 0.05  # what the child prints is shown this soon
_LONGEST_LINE = 2**14  # of one that is not finished: a bar that is drawn again is one line
# A terminal's commands: those for colours end in an m, the others would move the cursor about.
_COMMAND = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def can_draw() -> bool:
    """Whether there is a terminal that a panel can be drawn in."""
    return any(can_draw_on(stream) for stream in (sys.stderr, sys.stdout))


class Screen:
    """The shared terminal, as long as the context lasts.

    Args:
        panel: Makes the panel; called twice a second or so, from a thread.
        every: Seconds between two drawings.

    Attributes:
        stdout: What the child gets for its stdout; None where ours is no terminal and it keeps it.
        stderr: The same for stderr.
    """

    def __init__(self, panel: Callable[[], LivePanel], every: float = 0.5) -> None:
        import pty
        import tty

        self._panel = panel
        self._every = every
        self._stream: TextIO = sys.stderr if _is_terminal(sys.stderr) else sys.stdout
        self._area = LiveArea(self._stream)
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)  # what goes in comes out
        self._size: tuple[int, int] | None = None
        self.stdout = self._slave if _is_terminal(sys.stdout) else None
        self.stderr = self._slave if _is_terminal(sys.stderr) else None
        self._text = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="legroom-screen", daemon=True)
        self._own: list[tuple[str, TextIO]] = []

    def __enter__(self) -> Screen:
        self._fit()
        # What this process itself says goes the same way.
        for name, ours in (("stdout", self.stdout), ("stderr", self.stderr)):
            if ours is not None:
                stream = getattr(sys, name)
                stream.flush()
                self._own.append((name, stream))
                setattr(sys, name, os.fdopen(os.dup(ours), "w", encoding=stream.encoding,
                                             errors="replace", buffering=1))  # fmt: skip
        # Signals are the main thread's to wait for.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *error: object) -> None:
        for name, stream in self._own:
            mine = getattr(sys, name)
            setattr(sys, name, stream)
            with contextlib.suppress(OSError, ValueError):
                mine.close()
        self._stop.set()
        self._thread.join()
        os.close(self._slave)
        os.close(self._master)

    def _run(self) -> None:
        drawn = float("-inf")
        above = b""
        try:
            while not self._stop.is_set():
                above += self._read(_OUTPUT_EVERY if above else self._every)
                now = time.monotonic()
                whole, newline, self._text = above.rpartition(b"\n")
                if newline or now - drawn >= self._every:
                    drawn = now
                    self._fit()
                    self._draw(whole + newline)
                    above = self._text[-_LONGEST_LINE:]
        finally:
            while more := self._read(0):
                above += more
            end = above if not above or above.endswith(b"\n") else above + b"\n"
            self._area.close(_settled(end))

    def _read(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return b""
        try:
            return os.read(self._master, _READ)
        except OSError:  # nobody has the other end open
            return b""

    def _draw(self, above: bytes) -> None:
        columns, rows = self._area.size()
        lines: list[str] = []
        with contextlib.suppress(Exception):  # a picture is worth less than what it is of
            lines = panel_lines(self._panel(), columns, rows, plain=not _knows_blocks(self._stream))
        bar = _last_state(self._text.decode(errors="replace"))
        if bar:
            lines = [clean_line(_COMMAND.sub("", bar))[: columns - 1], *lines]
        self._area.draw(lines, _settled(above))

    def _fit(self) -> None:
        """Tell the child's terminal how large the real one is."""
        size = self._area.size()
        if size != self._size:
            self._size = size
            with contextlib.suppress(OSError, AttributeError):
                import fcntl
                import struct
                import termios

                columns, rows = size
                packed = struct.pack("HHHH", rows, columns, 0, 0)
                fcntl.ioctl(self._slave, termios.TIOCSWINSZ, packed)


def _settled(text: bytes) -> str:
    """Finished lines, each as it looked last."""
    words = _COMMAND.sub(
        lambda found: found[0] if found[0][-1] == "m" else "", text.decode(errors="replace")
    )
    lines = words.split("\n")
    return "\n".join(_last_state(line) for line in lines)


def _last_state(line: str) -> str:
    """What is to be seen of a line that was written over: by a carriage return, or going back."""
    shown: Sequence[str] = [part for part in line.rstrip("\r").split("\r") if part.strip("\b ")]
    return shown[-1].lstrip("\b") if shown else ""


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _knows_blocks(stream: TextIO) -> bool:
    try:
        "▁─".encode(stream.encoding or "ascii")
    except (LookupError, UnicodeError):
        return False
    return True
