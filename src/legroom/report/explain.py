"""A diagnosis that shows itself.

Reading messages is a floor below showing them. Whoever takes ``Diagnosis`` from here has the
renderers registered that it asks for; rich is loaded when one is shown.
"""

from __future__ import annotations

from typing import Any

from legroom.core.records import register_renderer
from legroom.messages import Diagnosis

__all__ = ["Diagnosis"]


def _in_terminal(diagnosis: Diagnosis) -> Any:
    from legroom.report.diagnosis import DiagnosisView

    return DiagnosisView(diagnosis)


def _in_notebook(diagnosis: Diagnosis) -> str:
    from legroom.report.diagnosis import diagnosis_html

    return diagnosis_html(diagnosis)


register_renderer(Diagnosis, "rich", _in_terminal)
register_renderer(Diagnosis, "html", _in_notebook)
