"""``legroom.estimate`` as users get it: with a result that shows itself."""

from __future__ import annotations

from typing import Any

from legroom.core.figures import BREAKDOWN
from legroom.core.records import register_renderer
from legroom.core.units import format_bytes
from legroom.prediction.estimate import Estimate
from legroom.prediction.sources import estimate

__all__ = ["Estimate", "estimate", "estimate_html", "estimate_table"]

_MOST_LAYERS = 5
_HOW = {
    "compiled": "from XLA's own figures",
    "probed": "from two small steps in a process of their own",
    "traced": "from the step's graph, nothing was run",
}


def estimate_table(made: Estimate) -> Any:
    """An estimate as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    from legroom.report.text import clean_line

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    bar = f"{format_bytes(made.low_bytes)} to {format_bytes(made.high_bytes)}"
    table.add_row("peak", Text(format_bytes(made.peak_bytes), "bold"), f"{bar}, {made.source}")
    table.add_row("first step", format_bytes(made.first_step_bytes), _HOW[made.source])
    for name in BREAKDOWN:
        size = made.breakdown.get(name, 0)
        if size:
            share = size / made.peak_bytes if made.peak_bytes else 0
            table.add_row(f"  {name}", format_bytes(size), f"{share:4.0%}")
    largest = [
        f"{clean_line(name)} {format_bytes(size)}" for name, size in made.layers[:_MOST_LAYERS]
    ]
    if largest:
        table.add_row("largest layers", "", Text(", ".join(largest)))
    for note in made.notes:
        table.add_row("note", "", Text(clean_line(note)))
    return table


def estimate_html(made: Estimate) -> str:
    """An estimate for a notebook."""
    from legroom.report.html.notebook import bar, card, rows_html

    peak = max(1, made.peak_bytes)
    rows: list[tuple[str, ...]] = [
        ("peak", format_bytes(made.peak_bytes), "",
         f"{format_bytes(made.low_bytes)} to {format_bytes(made.high_bytes)}, {made.source}"),
        ("first step", format_bytes(made.first_step_bytes), "", _HOW[made.source]),
    ]  # fmt: skip
    for name in BREAKDOWN:
        size = made.breakdown.get(name, 0)
        if size:
            rows.append((name, format_bytes(size), bar(size / peak), f"{size / peak:.0%}"))
    for name, size in made.layers[:_MOST_LAYERS]:
        rows.append((f"layer {name}", format_bytes(size), bar(size / peak), f"{size / peak:.0%}"))
    rows += [("note", "", "", note) for note in made.notes]
    title = f"{made.model}: one step of {made.method} on {made.batch_size} samples"
    return card(title, rows_html(rows, numbers=(1,)))


register_renderer(Estimate, "rich", estimate_table)
register_renderer(Estimate, "html", estimate_html)
