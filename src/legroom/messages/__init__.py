"""Text and exceptions → Diagnosis. Pure: no framework is imported, nothing is printed.

Guard and supervisor read errors and dying processes through this floor; ``legroom explain`` shows
what it makes of a log.
"""

from __future__ import annotations

from legroom.messages.diagnosis import Diagnosis, Remedy
from legroom.messages.explain import (
    diagnose_exception,
    diagnose_stream,
    diagnose_text,
    explain,
    translate,
)
from legroom.messages.reading.ops import layer_of_op, match_layer

__all__ = [
    "Diagnosis",
    "Remedy",
    "diagnose_exception",
    "diagnose_stream",
    "diagnose_text",
    "explain",
    "layer_of_op",
    "match_layer",
    "translate",
]
