"""What a step needs, in figures, as a backend predicts it."""

from __future__ import annotations

import dataclasses

__all__ = ["BREAKDOWN", "StepFigures"]

# The parts of a peak, in the order in which they are shown.
BREAKDOWN = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")


@dataclasses.dataclass(frozen=True)
class StepFigures:
    """What one source says of one batch size; the attributes are those of an `Estimate`."""

    peak_bytes: int
    low_bytes: int
    high_bytes: int
    first_step_bytes: int
    breakdown: dict[str, int]
    layers: tuple[tuple[str, int], ...]
    timeline: tuple[tuple[str, int], ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
