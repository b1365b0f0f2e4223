"""A scatter plot of estimates against the truth, as SVG: no plotting library is needed for that."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["scatter"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 420, 60, 46
_COLOURS = {"probed": "#1a7f5a", "traced": "#c77700", "line": "#8888aa",
            "compiled": "#7040b0"}  # fmt: skip
_MOST = 0.6  # the error at the upper and lower edge


def scatter(points: Sequence[tuple[str, float, float]]) -> str:
    """The plot: the truth to the right, the error upward.

    Args:
        points: Source, true bytes and estimated bytes.
    """
    truths = [truth for _, truth, _ in points]
    low, high = math.log10(min(truths)) - 0.1, math.log10(max(truths)) + 0.1

    def across(truth: float) -> float:
        return _LEFT + (math.log10(truth) - low) / (high - low) * (_WIDTH - _LEFT - 20)

    def upward(error: float) -> float:
        held = max(-_MOST, min(_MOST, error))
        return 20 + (_MOST - held) / (2 * _MOST) * (_HEIGHT - _BOTTOM - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for error in (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5):
        y, colour = upward(error), "#333" if error == 0 else "#ddd"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{error:+.0%}</text>'
        )
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = across(10**power)
        name = f"{10 ** (power - 6):g} MB" if power < 9 else f"{10 ** (power - 9):g} GB"
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{name}</text>')
    for source, truth, made in points:
        parts.append(
            f'<circle cx="{across(truth):.1f}" cy="{upward(made / truth - 1):.1f}" r="4" '
            f'fill="{_COLOURS[source]}" fill-opacity="0.65"><title>{source}: '
            f"{made / 1e6:.1f} MB for {truth / 1e6:.1f} MB</title></circle>"
        )
    for number, (source, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 20 + 110 * number
        parts.append(
            f'<circle cx="{x}" cy="{_HEIGHT - 9}" r="4" fill="{colour}"/>'
            f'<text x="{x + 9}" y="{_HEIGHT - 5}">{source}</text>'
        )
    parts.append(f'<text x="{_WIDTH - 20}" y="{_HEIGHT - 5}" text-anchor="end">true peak</text>')
    return "\n".join([*parts, "</svg>\n"])
