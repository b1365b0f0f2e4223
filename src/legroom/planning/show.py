"""A plan as tables for people."""

from __future__ import annotations

from typing import Any

from legroom.core.records import register_renderer
from legroom.core.units import format_bytes, format_factor
from legroom.planning.strategies import Plan, Strategy
from legroom.prediction.show import estimate_table

__all__ = ["plan_html", "plan_view"]


def plan_view(made: Plan) -> Any:
    """A plan for the terminal: what it is for, the estimate, and the strategies with reasons."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from legroom.report.text import clean_line

    head = Text.assemble(
        (clean_line(made.model), "bold"),
        f", batch {made.batch_size}, in {format_bytes(made.budget_bytes)}",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("strategy", "left"), ("peak", "right"), ("time", "right"), ("", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_row(*_row(made.chosen, "chosen"), style="bold")
    for strategy in made.alternatives:
        table.add_row(*_row(strategy, strategy.reason))
    parts: list[Any] = [head, Text(), estimate_table(made.estimate), Text(), table]
    if made.next_better_bytes is not None:
        parts += [
            Text(),
            Text(f"A faster strategy fits with {format_bytes(made.next_better_bytes)} or more."),
        ]
    for note in made.notes:
        if note not in made.estimate.notes:
            parts += [Text(), Text(f"Note: {clean_line(note)}")]
    return Group(*parts)


def _row(strategy: Strategy, last: str) -> tuple[str, str, str, str]:
    peak = "unknown"
    if strategy.peak_bytes is not None:
        peak = f"{'up to' if strategy.sure else 'about'} {format_bytes(strategy.peak_bytes)}"
    return strategy.name, peak, format_factor(strategy.time_factor), last


def plan_html(made: Plan) -> str:
    """A plan for a notebook."""
    from legroom.report.html.notebook import bar, card, rows_html

    largest = max(
        [made.budget_bytes, *(strategy.peak_bytes or 0 for strategy in made.alternatives)],
        default=1,
    )
    rows = []
    for strategy in (made.chosen, *made.alternatives):
        name, peak, time, last = _row(strategy, strategy.reason or "chosen")
        rows.append((name, peak, bar((strategy.peak_bytes or 0) / largest), time, last))
    notes = [("note", note) for note in made.notes]
    if made.next_better_bytes is not None:
        notes.append(
            ("", f"A faster strategy fits with {format_bytes(made.next_better_bytes)} or more.")
        )
    budget = format_bytes(made.budget_bytes)
    title = f"{made.model}, batch {made.batch_size}, in {budget}: {made.chosen.name}"
    return card(title, rows_html(rows, numbers=(1, 3)), rows_html(notes) if notes else "")


register_renderer(Plan, "rich", plan_view)
register_renderer(Plan, "html", plan_html)
