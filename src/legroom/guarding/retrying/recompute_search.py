"""What to recompute next, when a step has to run whole and does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from legroom.backends.steps import BackendStep
from legroom.core.traces import LayerCost
from legroom.planning.blocks import choose_blocks, held_bytes, leanest_blocks

__all__ = ["RecomputeSearch"]

# Of what a prediction says is missing, so much more is saved: it is not that sure.
_MARGIN = 1.3
# Without a prediction: the share of what is kept for gradients that may stay, at each attempt.
_SHARES = (0.5, 0.3)


class RecomputeSearch:
    """Chooses blocks of layers to recompute, more with every attempt.

    Args:
        step: The step that does not fit.
    """

    def __init__(self, step: BackendStep) -> None:
        self._step = step
        self._costs: Sequence[LayerCost] | None = None
        self._joined = False
        self._held: int | None = None
        self._in_force: Sequence[Sequence[str]] = ()

    def begin_with(self, blocks: Sequence[Sequence[str]]) -> None:
        """Take blocks as chosen by someone else: what comes next is to hold less."""
        self._in_force = blocks

    def next_blocks(self, data: Any, missing: int | None) -> list[list[str]]:
        """Blocks that hold less than those before; none where nothing is left to save.

        Args:
            data: The batch.
            missing: The bytes that are missing, as predicted; None after it ran out.
        """
        if self._costs is None:
            self._costs, self._joined = self._step.layer_costs(data)
            self._held = held_bytes(self._costs, self._places(self._in_force))
        if not self._held:
            return []
        budgets = [int(self._held * share) for share in _SHARES]
        if missing is not None:
            budgets = [self._held - int(missing * _MARGIN)]
        for budget in budgets:
            chosen = None
            if budget > 0:
                chosen = choose_blocks(self._costs, budget, joined=self._joined)
            if chosen:
                self._held = budget
                return self._named(chosen)
        self._held = 0  # nothing leaner comes after this
        return self._named(leanest_blocks(self._costs, joined=self._joined))

    def _places(self, blocks: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
        assert self._costs is not None
        at = {cost.name: place for place, cost in enumerate(self._costs)}
        return [(at[block[0]], at[block[-1]] + 1) for block in blocks if block[0] in at]

    def _named(self, blocks: Sequence[tuple[int, int]]) -> list[list[str]]:
        assert self._costs is not None
        return [[cost.name for cost in self._costs[start:stop]] for start, stop in blocks]
