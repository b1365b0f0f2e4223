"""What NumPy says, and Python itself."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern, not_in_code
from legroom.messages.sizes import SIZED

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        # 1.17: "Unable to allocate array with shape …"; later: "Unable to allocate 201. GiB for …"
        name="numpy-unable-to-allocate",
        key="Unable to allocate ",
        regex=re.compile(
            rf"Unable to allocate (?:array|(?P<size>{SIZED})(?: for (?:an )?array)?)"
            r"(?: with (?:shape|form) (?:\((?P<shape>[0-9, ]{0,300})\))?)?"
            r"(?: and data type (?P<dtype>\w{1,20}))?"
        ),
        finding="numpy-unable-to-allocate",
        framework="numpy",
        where="host",
    ),
    Pattern(
        name="numpy-array-too-big",
        key="array is too big; `arr.size",
        regex=re.compile(r"array is too big; `arr\.size"),
        finding="numpy-unable-to-allocate",
        framework="numpy",
        where="host",
    ),
    Pattern(
        name="python-memory-error",
        key="MemoryError",
        regex=re.compile(r"MemoryError(?=[:\s'\"(]|$)"),
        only_after=not_in_code(r"(?:^|[\s.\"'(\[:<])(?:_?Array)?"),
        finding="python-memory-error",
        fallback="system",
        where="host",
        weak=True,
    ),
)
