"""Records shown: live lines, the closing table, the journal. Sees records only, no framework."""

from __future__ import annotations

from typing import Any

from legroom.core.records import register_renderer
from legroom.report.run import RunReport

__all__: list[str] = []


def _run_table(report: RunReport) -> Any:
    from legroom.report.table import run_table  # rich is loaded when something is shown

    return run_table(report)


register_renderer(RunReport, "rich", _run_table)
