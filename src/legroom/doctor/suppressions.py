"""Findings that a user does not want: by id, or by a comment at the line they are about."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable

from legroom.core.findings import Finding
from legroom.doctor.catalog import TITLES

__all__ = ["read_ids", "suppressed", "wanted"]

_COMMENT = re.compile(r"#\s*legroom:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


def read_ids(words: Iterable[str]) -> tuple[str, ...]:
    """Ids as people write them: ``"LR109"``, ``"lr109,LR204"``.

    Raises:
        ValueError: If there is no such finding.
    """
    ids = [part.strip().upper() for word in words for part in word.split(",") if part.strip()]
    for name in ids:
        if name not in TITLES:
            raise ValueError(f"There is no finding {name!r}. Expected one of {', '.join(TITLES)}.")
    return tuple(ids)


def suppressed(finding: Finding) -> bool:
    """Whether the line a finding is about says that it is not wanted.

    ``# legroom: ignore[LR105]`` at the end of the line (also of the loop's line), or
    ``# legroom: ignore`` for all findings there.
    """
    places = {finding.place, str(finding.data.get("loop", ""))}
    return any(_says_so(place, finding.id) for place in places)


def wanted(findings: Iterable[Finding], ignore: Iterable[str] = ()) -> list[Finding]:
    """The findings that are neither named in `ignore` nor suppressed where they are."""
    unwanted = set(ignore)
    return [f for f in findings if f.id not in unwanted and not suppressed(f)]


def _says_so(place: str, name: str) -> bool:
    file, _, line = place.rpartition(":")
    if not line.isdigit():
        return False
    comment = _COMMENT.search(linecache.getline(file, int(line)))
    if comment is None:
        return False
    ids = comment.group(1)
    return ids is None or name in {part.strip().upper() for part in ids.split(",")}
