"""The live view of ``legroom run --view``: the script's output above, the run's panel below."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from legroom.cli.screen import Screen, can_draw
from legroom.report.journal import JournalTail
from legroom.report.panel import LivePanel, RunState
from legroom.supervise.run import Streams

__all__ = ["viewing"]


@contextlib.contextmanager
def viewing(script: Path) -> Iterator[Streams | None]:
    """Show a run's panel while the context lasts; None where there is no terminal to show it in."""
    if not can_draw():
        yield None
        return
    state = RunState(f"legroom run {script.name}")
    tail: JournalTail | None = None

    def follow(journal: Path) -> None:
        nonlocal tail
        tail = JournalTail(journal)

    def panel() -> LivePanel:
        if tail is not None:
            for event in tail.new_events():
                state(event)
        return state.panel(time.time())

    with Screen(panel) as screen:
        yield Streams(screen.stdout, screen.stderr, follow)
