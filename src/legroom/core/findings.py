"""Findings: what the doctor saw, where, what it costs and what cures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from legroom.core.records import Record, Shown

__all__ = ["Finding", "Findings", "counted", "ranked"]


@dataclasses.dataclass(frozen=True)
class Finding(Record):
    """One thing that the doctor saw.

    Attributes:
        id: Which kind of thing: ``"LR101"``. ``legroom explain LR101`` shows its page.
        title: The kind in a few words.
        text: What was seen, in a sentence or two.
        place: Where: ``file.py:12``, a layer, a stage of a pipeline.
        bytes: What it costs.
        per: What the bytes are for: ``"iteration"`` where they come again and again; else empty.
        fix: What to do.
        severity: ``"warning"``, or ``"note"`` for what may well be meant.
        data: The same for machines: plain JSON types only.
    """

    id: str
    title: str
    text: str
    place: str = ""
    bytes: int = 0
    per: str = ""
    fix: str = ""
    severity: str = "warning"
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_warning(self) -> bool:
        """Whether it is more than a note."""
        return self.severity == "warning"


class Findings(Shown, list[Finding]):
    """A list of findings that shows itself."""


def ranked(findings: Iterable[Finding]) -> Findings:
    """Findings in the order in which they matter: warnings first, then by bytes."""
    return Findings(
        sorted(findings, key=lambda finding: (not finding.is_warning, -finding.bytes, finding.id))
    )


def counted(findings: Sequence[Finding]) -> str:
    """How many there are, in words: `2 findings and 1 note`."""
    warnings = sum(finding.is_warning for finding in findings)
    notes = len(findings) - warnings
    words = [f"{warnings} finding{'s' * (warnings != 1)}"] if warnings else []
    words += [f"{notes} note{'s' * (notes != 1)}"] if notes else []
    return " and ".join(words) or "nothing found"
