"""A terminal to run commands in: a real pseudo-terminal, and an emulator that keeps its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte


class Terminal:
    """Runs a command in a terminal of a size.

    Attributes:
        screen: What is to be seen, with what was scrolled away.
        settings: How the terminal was set (termios) before the command ran.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        columns: int = 80,
        rows: int = 24,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._master, slave = pty.openpty()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(slave)
        self.pid = os.fork()
        if self.pid == 0:  # the terminal is the command's controlling one, as a shell's would be
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number in range(3):
                os.dup2(slave, number)
            os.chdir(folder)
            os.execve(command[0], list(command), {**environment, "TERM": "xterm-256color",
                                                  "LANG": "C.UTF-8"})  # fmt: skip
        self._slave = slave  # kept open, so that the settings can be read afterwards

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if (columns, rows) != (self.screen.columns, self.screen.lines):
            self.screen.resize(rows, columns)

    def type(self, keys: str) -> None:
        """Type something."""
        os.write(self._master, keys.encode())

    def text(self) -> str:
        """The screen, and what was scrolled away above it."""
        above = ["".join(line[k].data for k in range(self.screen.columns)).rstrip()
                 for line in self.screen.history.top]  # fmt: skip
        return "\n".join([*above, *(line.rstrip() for line in self.screen.display)]).rstrip()

    def wait(self, until: Callable[[], bool] | None = None, seconds: float = 60) -> None:
        """Follow the command until something is so, or until it ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([self._master], [], [], 0.05)
            if ready:
                with contextlib.suppress(OSError):
                    data = os.read(self._master, 65536)
                    self.raw += data
                    self._stream.feed(data)
                if until is not None and until():
                    return
            elif until is None and self._ended():
                return
        raise AssertionError(f"It did not come to that in {seconds} s:\n{self.text()}")

    def _ended(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def is_as_found(self) -> bool:
        """Whether the terminal is set as it was: its modes, its cursor."""
        same = termios.tcgetattr(self._slave) == self.settings
        return same and not self.screen.cursor.hidden and b"\x1b[?1049h" not in self.raw

    def close(self) -> None:
        """Close it."""
        os.close(self._master)
        os.close(self._slave)
