"""Findings shown: ranked, one short paragraph each."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions
from rich.text import Text

from legroom.core.errors import more
from legroom.core.findings import Finding, counted
from legroom.core.places import near_place
from legroom.core.units import format_bytes
from legroom.report.text import clean_line

__all__ = ["FindingsView", "print_findings"]

_WIDEST = 80


def print_findings(findings: Sequence[Finding], stream: TextIO | None = None) -> None:
    """Print findings, to stdout by default; in colour only where that is wanted."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return
    console = _Console(file=stream, highlight=False, markup=False, emoji=False)
    with contextlib.suppress(OSError, ValueError):
        console.print(FindingsView(findings), soft_wrap=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        self.quiet = True


class FindingsView:
    """Findings for the terminal."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(min(options.max_width, _WIDEST), 20)
        if not self._findings:
            yield Text("legroom: nothing found", style="green")
            return
        yield Text(f"legroom: {counted(self._findings)}", style="bold")
        for finding in self._findings:
            head = Text("  ").append(
                finding.id, style="bold yellow" if finding.is_warning else "cyan"
            )
            head.append(f" {finding.title}")
            if finding.bytes:
                head.append(f": {_size(finding)}", style="bold")
            yield head
            place = clean_line(near_place(finding.place))
            if place:
                yield Text(f"    at {place}", style="dim")
            yield from _wrapped(finding.text, width, "    ")
            if finding.fix:
                yield from _wrapped(f"Fix: {finding.fix}", width, "    ")
        yield Text(more(self._findings[0].id), style="dim")


def _size(finding: Finding) -> str:
    return format_bytes(finding.bytes) + (f" each {finding.per}" if finding.per else "")


def _wrapped(text: str, width: int, indent: str) -> Iterator[Text]:
    for line in textwrap.wrap(
        clean_line(text), width, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    ):  # fmt: skip
        yield Text(line)
