"""The terms of a loss while a step is on trial, in Keras and in plain PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from legroom.backends.keras.slices.rules import Rules
from legroom.backends.torch.slices.counted_losses import Counted, counting
from legroom.backends.torch.step.participants import KerasModel, Participants

__all__ = ["Seen", "noting"]


class Seen:
    """What losses and layers showed."""

    def __init__(self) -> None:
        self.terms: list[Any] = []
        self.names: list[str] = []
        self.counts: dict[int, Any] = {}
        self.batch_norms: list[str] = []
        self.weighted = False


@contextlib.contextmanager
def noting(
    parts: Participants, share: float | None, rules: Rules, totals: dict[int, Any] | None
) -> Iterator[Seen]:
    """Have loss terms be as the rules say; without any, as they are."""
    seen = Seen()
    if not isinstance(parts, KerasModel):
        counted = Counted(share if totals else None, totals or {})
        with counting(counted):
            yield seen
        seen.counts = counted.counts
        return
    from legroom.backends.keras.slices.loss_scale import Scale, scaling
    from legroom.backends.keras.slices.still_norms import still_norms

    scale = Scale(share, rules.terms, totals)
    with scaling(scale, unscaled=True), still_norms() as seen.batch_norms:
        yield seen
    seen.terms, seen.names, seen.counts = scale.values, scale.names, scale.counts
    seen.weighted = bool(scale.weighted)
