"""The live view of ``legroom run --view``: the script's output above, the run's panel below."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from legroom.cli.terminal.screen import Screen, can_draw
from legroom.report.journal import JournalTail
from legroom.report.screen.panel import LivePanel, RunState
from legroom.supervisor.run import Streams

__all__ = ["View", "viewing"]


class View:
    """The panel of a run, made from its journal.

    Attributes:
        streams: Where the script's output goes meanwhile.
    """

    def __init__(self, title: str) -> None:
        self._state = RunState(title)
        self._tail: JournalTail | None = None
        self.streams = Streams()

    def follow(self, journal: Path) -> None:
        """Read from this journal."""
        self._tail = JournalTail(journal)

    def panel(self) -> LivePanel:
        """The panel now."""
        for event in self._tail.new_events() if self._tail is not None else ():
            self._state(event)
        return self._state.panel(time.time())


@contextlib.contextmanager
def viewing(script: Path) -> Iterator[View]:
    """Show a run's panel while the context lasts, where there is a terminal to show it in."""
    view = View(f"legroom run {script.name}")
    if not can_draw():
        yield view
        return
    with Screen(view.panel) as screen:
        view.streams = Streams(screen.stdout, screen.stderr)
        yield view
