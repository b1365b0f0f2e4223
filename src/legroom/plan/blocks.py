"""Which layers to recompute, so that a step fits with the least work done twice. Pure.

Layers run in a row, and their gradients come in the opposite order. A layer's activations are
kept for its gradient, or it is in a block, of which only what comes in is kept; when the gradient
arrives the block runs again and has all its activations for as long as that takes. By then all that
was kept of the layers behind it has been given back: so a block at the beginning, where activations
are largest, may be a large one. The cheapest choice is found exactly, up to the rounding of bytes,
layer after layer (dynamic programming): for a row of layers that is faster and surer than a general
solver.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from legroom.core.traces import LayerCost

__all__ = ["choose_blocks", "held_bytes", "leanest_blocks"]

_Block = tuple[int, int]

# How finely bytes are told apart: what each layer keeps is rounded up, and there are hundreds.
_STEPS = 4096
# No block is longer than this: the work of looking grows with it, and the gain does not.
_LONGEST = 96


def held_bytes(costs: Sequence[LayerCost], blocks: Sequence[_Block]) -> int:
    """The most bytes that a step holds for its gradients with these blocks.

    Args:
        costs: The layers in order.
        blocks: Where each block begins, and the place after its end.
    """
    held = most = place = 0
    for start, stop in [*blocks, (len(costs), len(costs))]:
        held += sum(cost.kept_bytes for cost in costs[place:start])
        if start < len(costs):
            held += costs[start].incoming_bytes
            most = max(most, held + sum(cost.kept_bytes for cost in costs[start:stop]))
        place = stop
    return max(most, held)


def choose_blocks(
    costs: Sequence[LayerCost], budget: int, *, joined: bool = True
) -> list[_Block] | None:
    """The blocks with the least work among those that hold no more than a budget.

    Args:
        costs: The layers in order.
        budget: The bytes for all that is held for gradients.
        joined: Whether neighbours may be joined to a block; else each layer is one by itself.

    Returns:
        Where each block begins, and the place after its end; None where no choice is enough.
    """
    if sum(cost.kept_bytes for cost in costs) <= budget:
        return []
    return _cheapest(costs, budget, _LONGEST if joined else 1)


def leanest_blocks(costs: Sequence[LayerCost], *, joined: bool = True) -> list[_Block]:
    """The blocks that hold the least, whatever the work."""
    high = sum(cost.kept_bytes for cost in costs)
    low, best = 0, list[_Block]()
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        found = choose_blocks(costs, middle, joined=joined)
        if found is None:
            low = middle
        else:
            high, best = min(middle, held_bytes(costs, found)), found
    return best


def _cheapest(costs: Sequence[LayerCost], budget: int, longest: int) -> list[_Block] | None:
    if budget < 0:
        return None
    step = max(1, -(-budget // _STEPS))
    room = budget // step + 1
    count = len(costs)
    # least[i][m]: the least work on the layers from the i-th on with m steps of memory left.
    least = np.full((count + 1, room), np.inf)
    least[count] = 0.0
    # The end of the block that begins here; 0: kept.
    until: npt.NDArray[np.int32] = np.zeros((count, room), np.int32)

    def offer(i: int, after: int, taken: int, needed: int, work: float, mark: int) -> None:
        """Take a choice for the i-th layer wherever it can be made and is cheaper."""
        if needed >= room:
            return
        offered = least[after, needed - taken : room - taken] + work
        better = offered < least[i, needed:]
        least[i, needed:][better] = offered[better]
        until[i, needed:][better] = mark

    for i in range(count - 1, -1, -1):
        kept = -(-costs[i].kept_bytes // step)
        offer(i, i + 1, kept, kept, 0.0, 0)
        incoming, inner, work = costs[i].incoming_bytes, 0, 0.0
        for j in range(i, min(count, i + longest)):
            inner += costs[j].kept_bytes
            work += costs[j].work
            if incoming + inner > budget:
                break
            taken, needed = -(-incoming // step), -(-(incoming + inner) // step)
            offer(i, j + 1, taken, needed, work, j + 1)
    if not np.isfinite(least[0, -1]):
        return None
    blocks, i, left = list[_Block](), 0, room - 1
    while i < count:
        stop = int(until[i, left])
        if stop:
            blocks.append((i, stop))
            left -= -(-costs[i].incoming_bytes // step)
            i = stop
        else:
            left -= -(-costs[i].kept_bytes // step)
            i += 1
    return blocks
