"""A curve drawn in characters, for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["curve", "squeezed"]

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:-=+*%#"
_LIMIT = "─"
_PLAIN_LIMIT = "-"


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """A series in so many columns, each the highest of what falls into it."""
    count = len(values)
    if count <= width:
        return list(values)
    return [
        max(values[count * k // width : max(count * (k + 1) // width, count * k // width + 1)])
        for k in range(width)
    ]


def curve(
    values: Sequence[float],
    width: int,
    height: int,
    *,
    top: float,
    limit: float | None = None,
    plain: bool = False,
) -> list[str]:
    """Draw a series as columns, the highest row first.

    Args:
        values: The series, oldest first.
        width: In characters.
        height: In rows.
        top: What the highest row's upper edge stands for.
        limit: Where to draw a line across.
        plain: Use ASCII only.
    """
    marks, across = (_PLAIN, _PLAIN_LIMIT) if plain else (_BLOCKS, _LIMIT)
    steps = len(marks) - 1
    columns = squeezed(values, width)
    scale = height * steps / top if top > 0 else 0.0
    levels = [min(height * steps, round(value * scale)) for value in columns]
    line = min(height - 1, int(limit * scale / steps)) if limit is not None and top else None
    rows = []
    for row in range(height - 1, -1, -1):
        empty = across if row == line else " "
        rows.append(
            "".join(
                marks[level] if (level := min(steps, reached - row * steps)) > 0 else empty
                for reached in levels
            )
            + empty * (width - len(levels))
        )
    return rows
