"""Sizes, as people write them and as they read them."""

from __future__ import annotations

import math
import os
import re

from legroom.core.errors import BadBudgetError

__all__ = [
    "MEMORY_VARIABLE",
    "UNITS_VARIABLE",
    "format_bytes",
    "format_factor",
    "format_seconds",
    "parse_size",
    "units_family",
]

# A hard cap on the device, as `legroom.limit` sets it.
MEMORY_VARIABLE = "LEGROOM_MEMORY"
# The family of units that the user writes, "GiB" or "GB", for this process and those it starts.
UNITS_VARIABLE = "LEGROOM_UNITS"
_FAMILIES = {
    "GB": (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)),
    "GiB": (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)),
}

_UNITS = {
    "": 1,
    "b": 1,
    "k": 2**10, "kib": 2**10, "kb": 10**3,
    "m": 2**20, "mib": 2**20, "mb": 10**6,
    "g": 2**30, "gib": 2**30, "gb": 10**9,
    "t": 2**40, "tib": 2**40, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)\s*", re.ASCII)
_EXPECTED = 'Expected "8GiB", "8GB", "512MiB", "80%" or a whole number of bytes.'


def parse_size(size: str | int | float, *, whole: int | None = None) -> int:
    """Read a size: ``"8GiB"``, ``"8GB"``, ``"80%"`` or a number of bytes.

    Who writes GiB reads GiB from then on, and who writes GB reads GB.

    Args:
        size: What the user wrote.
        whole: What 100 % stands for. Without it a percentage is refused.

    Raises:
        BadBudgetError: If the size can't be read, or is not above zero.
    """
    if isinstance(size, bool) or not isinstance(size, (str, int, float)):
        raise BadBudgetError(
            f"A size can't be a {type(size).__name__}. {_EXPECTED} Received: {size!r}"
        )
    if isinstance(size, (int, float)):
        if not math.isfinite(size):
            raise BadBudgetError(f"A size must be a finite number. {_EXPECTED} Received: {size!r}")
        count = float(size)
    else:
        match = _SIZE.fullmatch(size)
        unit = match.group(2).lower() if match else ""
        if match is None or (unit != "%" and unit not in _UNITS):
            raise BadBudgetError(f"A size that can't be read. {_EXPECTED} Received: {size!r}")
        count = float(match.group(1))
        if unit == "%":
            if whole is None:
                raise BadBudgetError(
                    "A percentage needs a device whose memory is known, and none was found here. "
                    f'Give the size itself, as in "8GiB". Received: {size!r}'
                )
            if count > 100:
                raise BadBudgetError(
                    f"More than 100 % of the memory can't be used. Received: {size!r}"
                )
            count *= whole / 100
        else:
            count *= _UNITS[unit]
            if len(unit) > 1:
                os.environ[UNITS_VARIABLE] = "GiB" if unit.endswith("ib") else "GB"
    if count < 1:
        raise BadBudgetError(f"A size must be above zero. {_EXPECTED} Received: {size!r}")
    if count >= 2**62:
        raise BadBudgetError(f"A size larger than any memory. {_EXPECTED} Received: {size!r}")
    return int(count)


def units_family() -> str:
    """The family of units that sizes are written in: ``"GB"`` or ``"GiB"``."""
    chosen = os.environ.get(UNITS_VARIABLE, "")
    return chosen if chosen in _FAMILIES else "GB"


def format_bytes(count: float) -> str:
    """Write a number of bytes with three significant digits: ``"848 MB"``, ``"1.21 GB"``.

    In the family of units that the user has written a size in; in MB and GB before that.
    """
    sign = "-" if count < 0 else ""
    count = abs(count)
    for unit, size in _FAMILIES[units_family()]:
        # 999.5 of a unit would round up to 1000 of it: the next unit takes over there.
        if count >= size * 0.9995:
            value = count / size
            digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{sign}{value:.{digits}f} {unit}"
    return f"{sign}{count:.0f} B"


def format_factor(factor: float) -> str:
    """Write a predicted time, with that of the step as it is as 1: ``"about 8 % slower"``."""
    percent = round((factor - 1) * 100)
    return f"about {percent} % slower" if percent >= 1 else "as fast"


def format_seconds(seconds: float) -> str:
    """Write a duration: ``"0.8 s"``, ``"42 s"``, ``"3 min 5 s"``, ``"2 h 10 min"``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
