"""Records as small pieces of HTML for notebooks.

No scripts, no style sheets and nothing to fetch: Colab, Kaggle, JupyterLab and VS Code show all of
it as it is. Colours are the notebook's own, so that it is readable in light and in dark. Every text
is escaped: names of layers and of models are data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from legroom.core.findings import Finding, counted
from legroom.core.places import near_place
from legroom.core.units import format_bytes, format_seconds
from legroom.report.run import RunReport

__all__ = ["bar", "card", "findings_html", "rows_html", "run_html"]

_MOST_LINES = 8
_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top;border:0"
_NUMBER = "text-align:right;padding:2px 14px 2px 0;vertical-align:top;white-space:nowrap;border:0"


def card(title: str, *parts: str) -> str:
    """A titled piece; the parts are HTML already."""
    inner = "".join(part for part in parts if part)
    return (
        '<div class="legroom" style="max-width:44em;line-height:1.4">'
        f"<p><b>{escape(title)}</b></p>{inner}</div>"
    )


def rows_html(rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table without a head.

    Args:
        rows: The texts of each row's cells; one that begins with a bar is one.
        numbers: Which columns hold numbers.
    """
    lines = []
    for row in rows:
        cells = (
            f'<td style="{_NUMBER if k in numbers else _CELL}">'
            f"{text if isinstance(text, _Markup) else escape(text)}</td>"
            for k, text in enumerate(row)
        )
        lines.append(f'<tr style="background:none">{"".join(cells)}</tr>')
    return f'<table style="border-collapse:collapse;margin:0">{"".join(lines)}</table>'


class _Markup(str):
    """HTML of our own, which is not escaped again."""

    __slots__ = ()


def bar(share: float) -> str:
    """A bar of a length between 0 and 1."""
    width = 100 * min(1.0, max(0.0, share))
    return _Markup(
        '<div style="width:9em;height:0.8em;margin-top:0.3em;background:rgba(128,128,128,0.25)">'
        f'<div style="width:{width:.1f}%;height:100%;background:#0072B2"></div></div>'
    )


def run_html(report: RunReport) -> str:
    """A run: what a user wants to know first, and what was said."""
    batch, size = report.batch_size, report.slice_size
    rows: list[Sequence[str]] = []
    times = "never" if not report.ooms else "once" if report.ooms == 1 else f"{report.ooms} times"
    lost = f", {format_seconds(report.oom_seconds)}" if report.ooms else ""
    rows.append(("out of memory", times + lost))
    if batch and size:
        how = "whole" if size >= batch else f"as {-(-batch // size)} slices of up to {size}"
        rows.append(("batches", f"{batch}, {how}"))
    if report.peak_bytes is not None:
        of = f" of {format_bytes(report.budget_bytes)}" if report.budget_bytes else ""
        share = bar(report.peak_bytes / report.budget_bytes) if report.budget_bytes else ""
        rows.append(("peak", f"{format_bytes(report.peak_bytes)}{of}", share))
    if report.restarts:
        rows.append(("started again", str(report.restarts)))
    rows.append(("samples", f"{report.samples_seen} seen, {report.samples_lost} lost"))
    said = [event.text for event in report.events if event.text]
    more = len(said) - _MOST_LINES
    lines = "".join(f"<li>{escape(text)}</li>" for text in said[:_MOST_LINES])
    lines += f"<li>and {more} more</li>" if more > 0 else ""
    return card("legroom", rows_html(rows), f"<ul>{lines}</ul>" if lines else "")


def findings_html(findings: Sequence[Finding]) -> str:
    """Findings, what matters most first."""
    parts = []
    for found in findings:
        size = f": {format_bytes(found.bytes)}" if found.bytes else ""
        each = f" each {found.per}" if found.bytes and found.per else ""
        place = f"<br><code>{escape(near_place(found.place))}</code>" if found.place else ""
        fix = f"<br><b>Fix:</b> {escape(found.fix)}" if found.fix else ""
        head = escape(f"{found.id} {found.title}{size}{each}")
        parts.append(f"<li><b>{head}</b>{place}<br>{escape(found.text)}{fix}</li>")
    title = f"legroom: {counted(findings)}"
    return card(title, f"<ul>{''.join(parts)}</ul>" if parts else "")
