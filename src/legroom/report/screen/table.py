"""The closing table of a run."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from legroom.core.events import DidNotFit, Planned, Progress
from legroom.core.units import format_bytes, format_seconds
from legroom.report.run import RunReport
from legroom.report.text import clean_line

__all__ = ["print_table", "run_table"]

_WIDEST = 80
_MOST_BATCHES = 3
_TRAINING = "batch"  # the subject of a plan that is not for evaluation or prediction


def print_table(report: RunReport, stream: TextIO | None = None) -> None:
    """Print the closing table, to stderr by default; in colour only where that is wanted."""
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return
    console = Console(file=stream, highlight=False)
    console.width = min(console.width, _WIDEST)
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        console.print(run_table(report))


def run_table(report: RunReport) -> Panel:
    """A run's report as a table of what a user wants to know first."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("out of memory", _ooms(report))
    if report.restarts:
        times = "once" if report.restarts == 1 else f"{report.restarts} times"
        table.add_row("interrupted", Text(f"{times}, and started again"))
    if batches := _batches(report):
        table.add_row("batches", Text("\n".join(batches)))
    if report.peak_bytes is not None:
        table.add_row("peak", Text(_peak(report.peak_bytes, report.budget_bytes)))
    table.add_row("samples", _samples(report))
    return Panel(table, title="legroom", title_align="left", expand=False, padding=(0, 1))


def _ooms(report: RunReport) -> Text:
    for event in report.events:
        if isinstance(event, DidNotFit):
            return Text(_misfit(event.slice_size), style="bold red")
    if not report.ooms:
        return Text("never")
    times = "once" if report.ooms == 1 else f"{report.ooms} times"
    return Text(f"{times}, survived; it cost {format_seconds(report.oom_seconds)}")


def _misfit(slice_size: int | None) -> str:
    if slice_size is None:
        return "a batch that can't be sliced did not fit"
    if slice_size > 1:
        return f"slices of {slice_size}, as fixed, did not fit"
    return "even one sample at a time did not fit"


def _batches(report: RunReport) -> list[str]:
    """How batches were run, the largest first: a script may train on several sizes."""
    slices: dict[tuple[str, int], int] = {}
    for event in report.events:
        if isinstance(event, Planned):
            slices[event.subject, event.batch_size] = event.slice_size
        elif isinstance(event, Progress) and event.batch_size is not None:
            slices.setdefault((_TRAINING, event.batch_size), event.batch_size)
    if not slices and report.batch_size is not None:
        slices[_TRAINING, report.batch_size] = report.slice_size or report.batch_size
    # The short batch at the end of an epoch runs in the slices of the others: not worth a line.
    largest: dict[tuple[str, int], int] = {}
    for (subject, batch), size in slices.items():
        if size < batch:
            largest[subject, size] = max(batch, largest.get((subject, size), 0))
    lines = [
        _batch(subject, batch, size)
        for (subject, batch), size in sorted(slices.items(), key=_training_first)
        if size >= batch or batch == largest[subject, size]
    ]
    others = len(lines) - _MOST_BATCHES
    if others > 0:
        lines[_MOST_BATCHES:] = [f"and {others} other batch size{'s' if others > 1 else ''}"]
    return lines


def _training_first(item: tuple[tuple[str, int], int]) -> tuple[bool, str, int]:
    (subject, batch), _ = item
    return subject != _TRAINING, subject, -batch


def _batch(subject: str, batch: int, size: int) -> str:
    what = "" if subject == _TRAINING else f"{clean_line(subject)} "
    if size >= batch:
        return f"{what}{batch}, whole"
    count = -(-batch // size)
    return f"{what}{batch} as {count} slices of {'' if batch % size == 0 else 'up to '}{size}"


def _peak(peak: int, budget: int | None) -> str:
    if not budget:
        return format_bytes(peak)
    return f"{format_bytes(peak)} of {format_bytes(budget)} ({peak / budget:.0%})"


def _samples(report: RunReport) -> Text:
    seen = f"{report.samples_seen:,}".replace(",", " ")
    text = Text(f"{seen} seen, ")
    lost = "none lost" if not report.samples_lost else f"{report.samples_lost} lost"
    return text.append(lost, style="bold red" if report.samples_lost else "")
