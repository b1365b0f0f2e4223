"""What is said in the terminal while a script runs: one line for each thing that happens.

Lines go to stderr, because stdout is the script's. Keras draws its progress bar on stdout and
leaves the cursor behind it, so where both end up in the same place a line of ours starts on a new
one, and Keras's next redraw follows below it.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
import time
from typing import TextIO

from legroom.core.events import (
    DidNotFit,
    Event,
    Note,
    RanOut,
    TrainingFinished,
    TrainingStarted,
)
from legroom.report.text import clean_line, clean_text

__all__ = ["LiveLines", "say"]

_PREFIX = "legroom: "
_COLOURS: dict[type[Event], str] = {RanOut: "33", DidNotFit: "31", Note: "36"}  # yellow, red, cyan
_PLAIN_COLOUR = "32"  # green
# Two lines this close together were said in one breath: no bar was drawn between them.
_ONE_BREATH = 0.03


class LiveLines:
    """A listener that prints the text of events.

    Args:
        stream: Where to; the process's stderr by default, looked up each time, so that a script
            that replaces ``sys.stderr`` is followed.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._trainings = 0
        self._last = float("-inf")
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Print the event's text, if it has one."""
        with self._lock:
            if isinstance(event, TrainingStarted):
                self._trainings += 1
            elif isinstance(event, TrainingFinished):
                self._trainings = max(0, self._trainings - 1)
            if not event.text:
                return
            now = time.monotonic()
            in_a_bar = self._trainings > 0 and now - self._last > _ONE_BREATH
            colour = _COLOURS.get(type(event), _PLAIN_COLOUR)
            say(clean_line(event.text), stream=self._stream, colour=colour, in_a_bar=in_a_bar)
            self._last = now


def say(
    text: str,
    *,
    stream: TextIO | None = None,
    colour: str = _PLAIN_COLOUR,
    in_a_bar: bool = False,
) -> None:
    """Print a message of legroom's.

    Never raises for a stream that is closed or gone: a training does not end because nobody reads.

    Args:
        text: What to say. Line breaks in it stay.
        stream: Where to; ``sys.stderr`` by default.
        colour: The prefix's colour, as an ANSI number.
        in_a_bar: Whether a progress bar may have left the cursor in the middle of a line.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return  # a process without a stderr, as under pythonw
    terminal = _is_terminal(stream)
    lines = _wrapped(clean_text(text), _width() if terminal else None)
    if terminal and _colours_wanted():
        lines[0] = f"\x1b[{colour}m{_PREFIX}\x1b[0m{lines[0][len(_PREFIX) :]}"
    message = "\n".join(lines) + "\n"
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        if in_a_bar and _same_place(sys.stdout, stream):
            message = "\n" + message
        stream.write(message)
        stream.flush()
    except (OSError, ValueError):
        pass


def _wrapped(text: str, width: int | None) -> list[str]:
    """The lines of a message, the prefix on the first, the others indented below its text."""
    indent = " " * len(_PREFIX)
    lines: list[str] = []
    for line in text.split("\n"):
        own = line[: len(line) - len(line.lstrip())]
        first = (indent if lines else _PREFIX) + own
        if width is None or len(first) + len(line.lstrip()) <= width:
            lines.append((first + line.lstrip()).rstrip() if lines else first + line.lstrip())
        else:
            lines += textwrap.wrap(
                line.lstrip(),
                width,
                initial_indent=first,
                subsequent_indent=indent + own,
                break_on_hyphens=False,
                break_long_words=False,
            )
    return lines


def _width() -> int:
    # One column is left free: some terminals break a line that fills them wholly.
    return max(40, shutil.get_terminal_size((80, 24)).columns - 1)


def _colours_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (OSError, ValueError):
        return False


def _same_place(one: TextIO | None, other: TextIO) -> bool:
    """Whether two streams end in the same terminal, pipe or file."""
    if one is None:
        return False
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):  # closed, or not a file at all, as in a notebook
        return False
