"""A process watched until it ends: in a terminal as a panel, elsewhere as lines."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from legroom.cli.terminal.screen import Screen, can_draw
from legroom.core.units import format_bytes, format_seconds
from legroom.doctor.growing.trend import test_growth
from legroom.machine.tree import TreeReading, TreeWatch
from legroom.report.screen.lines import say
from legroom.report.screen.panel import LivePanel

__all__ = ["growth_words", "watch_command", "watch_process"]

_USAGE, _NOT_FOUND, _NOT_EXECUTABLE = 2, 127, 126
_LINE_EVERY = 5.0
_MOST_READINGS = 4000
# Less is a start, which grows by its nature.
_LEAST_SECONDS = 60.0

_Show = Callable[[TreeReading], None]


def watch_process(pid: int, every: float, show: _Show | None) -> int:
    """Watch a process that runs already.

    Returns:
        The exit code for the command.
    """
    import psutil

    try:
        tree = TreeWatch(pid)
        title = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except (psutil.Error, OverflowError):
        say(f"There is no process {pid} to watch.", colour="31")
        return _USAGE
    watching = _Watching(f"{pid}: {title}", show)
    with watching.shown(every):
        while (reading := tree.read()) is not None:
            watching(reading)
            time.sleep(every)
    watching.close()
    return 0


def watch_command(command: Sequence[str], every: float, show: _Show | None) -> int:
    """Start a command and watch it to its end.

    Returns:
        Its exit code; by the signal that it died by, this process ends itself.
    """
    from legroom.supervisor.signals import die_by

    watching = _Watching(" ".join(command), show)
    with watching.shown(every) as screen:
        # Where readings go to stdout, what the command prints must not mix with them.
        stdout = sys.stderr.fileno() if show is not None else None
        try:
            child = subprocess.Popen(
                command,
                stdout=stdout if screen is None else screen.stdout,
                stderr=None if screen is None else screen.stderr,
            )
        except OSError as error:
            say(f"{command[0]} can't be started: {error.strerror or error}", colour="31")
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        with _passing_signals_on(child):
            tree = TreeWatch(child.pid)
            while child.poll() is None:
                if (reading := tree.read()) is not None:
                    watching(reading)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(every)
    watching.close()
    code = child.returncode
    return code if code >= 0 else die_by(-code)


def growth_words(values: Sequence[float], seconds: float) -> str | None:
    """A sentence on memory that grew all the time, and on how to find what grows; None if not.

    Args:
        values: Readings in bytes, equally far apart.
        seconds: How long they took.
    """
    if seconds < _LEAST_SECONDS:
        return None
    growth = test_growth([(number, round(value)) for number, value in enumerate(values)])
    if not growth.grows:
        return None
    minute = growth.slope * len(values) / seconds * 60
    return (
        f"Main memory grew all the time, by {format_bytes(minute)} a minute. If it is a training "
        "script, `legroom check SCRIPT` names what grows."
    )


@contextlib.contextmanager
def _passing_signals_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have the command answer the signals that would end this process; it ends, and so does this.

    A terminal sends Ctrl-C to the command as well; other signals come to this process alone.
    """

    def pass_on(number: int, frame: types.FrameType | None) -> None:
        del frame
        child.send_signal(number)

    handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: pass_on}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = pass_on
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watching:
    """Shows readings as they come; in the end, what was the most and whether it grew."""

    def __init__(self, title: str, show: _Show | None) -> None:
        self._title = title
        self._show = show
        self._draws = show is None and can_draw()
        self._reading: TreeReading | None = None
        self._values: list[float] = []
        self._gpu = 0
        self._most = 0
        self._began = time.monotonic()
        self._said = float("-inf")

    def __call__(self, reading: TreeReading) -> None:
        """Take a reading in."""
        self._most = max(self._most, reading.host_bytes)
        used = reading.gpu_used_bytes if reading.gpu_bytes is None else reading.gpu_bytes
        self._gpu = max(self._gpu, used or 0)
        if self._show is not None:
            self._show(reading)
            return
        self._values.append(float(reading.host_bytes))
        if len(self._values) > _MOST_READINGS:
            pairs = zip(self._values[::2], self._values[1::2], strict=False)
            self._values = [max(pair) for pair in pairs]
        self._reading = reading
        if not self._draws and time.monotonic() - self._said >= _LINE_EVERY:
            self._said = time.monotonic()
            say(self._words(reading))

    def shown(self, every: float) -> contextlib.AbstractContextManager[Screen | None]:
        """Draw the panel as long as the context lasts, where there is a terminal."""
        return Screen(self._panel, max(every, 0.1)) if self._draws else contextlib.nullcontext()

    def close(self) -> None:
        """Say what was the most, and whether it grew."""
        if self._show is None:
            gpu = f", {format_bytes(self._gpu)} on GPUs" if self._gpu else ""
            seconds = time.monotonic() - self._began
            took = format_seconds(seconds)
            say(f"at most {format_bytes(self._most)} of main memory{gpu} in {took}")
            if words := growth_words(self._values, seconds):
                say(words)

    def _panel(self) -> LivePanel:
        reading = self._reading
        if reading is None:
            return LivePanel(self._title, [], None, [], [])
        limit = float(reading.host_limit_bytes)
        return LivePanel(self._title, list(self._values), limit, [self._words(reading)], [])

    def _words(self, reading: TreeReading) -> str:
        parts = [
            f"main memory {format_bytes(reading.host_bytes)}, at most {format_bytes(self._most)} "
            f"of {format_bytes(reading.host_limit_bytes)}"
        ]
        if reading.gpu_total_bytes is not None:
            # Where it can't be told whose it is, what is in use by all stands for it.
            known = reading.gpu_bytes is not None
            used = format_bytes((reading.gpu_bytes if known else reading.gpu_used_bytes) or 0)
            total = format_bytes(reading.gpu_total_bytes)
            parts.append(f"GPU {used} of {total}{'' if known else ' (by all)'}")
        if reading.processes > 1:
            parts.append(f"{reading.processes} processes")
        parts.append(format_seconds(time.monotonic() - self._began))
        return " | ".join(parts)
