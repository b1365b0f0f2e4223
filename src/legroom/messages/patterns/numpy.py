"""What NumPy says, and Python itself."""

from __future__ import annotations

from legroom.messages.patterns.pattern import not_in_code, wordings
from legroom.messages.reading.sizes import SIZED

__all__ = ["PATTERNS"]

_numpy_unable_to_allocate = wordings("numpy-unable-to-allocate", framework="numpy", where="host")
_python_memory_error = wordings("python-memory-error", fallback="system", where="host")

PATTERNS = (
    # 1.17: "Unable to allocate array with shape …"; later: "Unable to allocate 201. GiB for …"
    _numpy_unable_to_allocate(
        "numpy-unable-to-allocate",
        "Unable to allocate ",
        (
            rf"Unable to allocate (?:array|(?P<size>{SIZED})(?: for (?:an )?array)?)"
            r"(?: with (?:shape|form) (?:\((?P<shape>[0-9, ]{0,300})\))?)?"
            r"(?: and data type (?P<dtype>\w{1,20}))?"
        ),
    ),
    _numpy_unable_to_allocate(
        "numpy-array-too-big", "array is too big; `arr.size", r"array is too big; `arr\.size"
    ),
    _python_memory_error(
        "python-memory-error",
        "MemoryError",
        r"MemoryError(?=[:\s'\"(]|$)",
        only_after=not_in_code(r"(?:^|[\s.\"'(\[:<])(?:_?Array)?"),
        weak=True,
    ),
)
