"""The lines of commands that work in stages: what runs now, and what became of it."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from legroom.report.text import clean_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Stages"]

_WIDEST = 80
_INDENT = "   "


class Stages:
    """Prints the stages of a command, at most 80 columns wide.

    Args:
        to_stderr: Keep stdout free, for a document that is printed there.
    """

    def __init__(self, *, to_stderr: bool = False) -> None:
        from rich.console import Console

        stream = sys.stderr if to_stderr else sys.stdout
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no "→"
        self.console: Console = Console(file=stream, highlight=False, emoji=False)
        self.console.width = min(self.console.width, _WIDEST)

    def heading(self, text: str) -> None:
        """A line that stands out, with an empty one before it."""
        self._print("")
        self._print(text, style="bold")

    def line(self, text: str, *, style: str = "", indent: str = _INDENT) -> None:
        """A line below a heading, wrapped where it is too long."""
        for line in clean_text(text).split("\n"):
            for part in textwrap.wrap(
                line,
                self.console.width - 1,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            ) or [""]:
                self._print(part, style=style)

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something runs, and on a terminal for how long; gone when it has ended."""
        if not self.console.is_terminal:
            self.line(f"{text} …", style="dim")
            yield
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn("line"), TextColumn(text), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(text, total=None)
            yield

    def _print(self, text: str, style: str = "") -> None:
        # soft_wrap: the lines are already as long as they should be.
        self.console.print(text, style=style or None, markup=False, soft_wrap=True)
