"""Records shown: live lines, tables, pages, the journal. Sees records only, no framework."""

from __future__ import annotations

from typing import Any

from legroom.core.findings import Finding, Findings
from legroom.core.records import register_renderer
from legroom.report.run import RunReport

__all__ = ["Finding"]

# rich is loaded when something is shown.


def _run_table(report: RunReport) -> Any:
    from legroom.report.screen.table import run_table

    return run_table(report)


def _run_html(report: RunReport) -> str:
    from legroom.report.html.notebook import run_html

    return run_html(report)


def _findings_view(findings: Finding | Findings) -> Any:
    from legroom.report.findings import FindingsView

    return FindingsView([findings] if isinstance(findings, Finding) else findings)


def _findings_html(findings: Finding | Findings) -> str:
    from legroom.report.html.notebook import findings_html

    return findings_html([findings] if isinstance(findings, Finding) else findings)


register_renderer(RunReport, "rich", _run_table)
register_renderer(RunReport, "html", _run_html)
for _kind in (Finding, Findings):
    register_renderer(_kind, "rich", _findings_view)
    register_renderer(_kind, "html", _findings_html)
