"""Which layers to recompute, so that a step fits with the least work done twice. Pure.

Layers run in a row, and their gradients come in the opposite order. A layer's activations are
kept for its gradient, or it is in a block, of which only what comes in is kept, and what a kept
layer behind it reads for its own gradient. When the gradient arrives the block runs again and has
all its activations for as long as that takes. By then all that was kept of the layers behind it has
been given back: so a block at the beginning, where activations are largest, may be a large one. The
cheapest choice is found exactly, up to the rounding of bytes, layer after layer (dynamic
programming): for a row of layers that is faster and surer than a general solver.
"""

from __future__ import annotations

import itertools
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
    held = most = 0
    behind_block, stops = False, dict(blocks)
    i = 0
    while i < len(costs):
        stop = stops.get(i)
        held += _coming_in(costs[i], behind_block, stop is not None)
        if stop is None:
            held += costs[i].kept_bytes
        else:
            most = max(most, held + sum(cost.kept_bytes for cost in costs[i:stop]))
        behind_block = stop is not None
        i = stop or i + 1
    return max(most, held)


def _coming_in(cost: LayerCost, behind_block: bool, begins_block: bool) -> int:
    """What is held of that which comes in to a layer, besides what is kept of those before."""
    needed = cost.incoming_bytes if begins_block else cost.read_bytes
    return needed if behind_block else needed - cost.read_bytes


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
    # least[b][i][m]: the least work on the layers from the i-th on with m steps of memory left,
    # where the layer before is kept (b = 0) or in a block (b = 1).
    least = np.full((2, count + 1, room), np.inf)
    least[:, count] = 0.0
    # The end of the block that begins here; 0: kept.
    until: npt.NDArray[np.int32] = np.zeros((2, count, room), np.int32)

    def steps(size: int) -> int:
        return -(-size // step)

    def offer(behind: int, i: int, stop: int, taken: int, needed: int, work: float) -> None:
        """Take a choice for the i-th layer wherever it can be made and is cheaper."""
        if needed >= room:
            return
        after = least[1, stop] if stop else least[0, i + 1]
        offered = after[needed - taken : room - taken] + work
        better = offered < least[behind, i, needed:]
        least[behind, i, needed:][better] = offered[better]
        until[behind, i, needed:][better] = stop

    for i, behind in itertools.product(range(count - 1, -1, -1), (0, 1)):
        kept = steps(_coming_in(costs[i], bool(behind), False) + costs[i].kept_bytes)
        offer(behind, i, 0, kept, kept, 0.0)
        incoming, inner, work = _coming_in(costs[i], bool(behind), True), 0, 0.0
        for j in range(i, min(count, i + longest)):
            inner += costs[j].kept_bytes
            work += costs[j].work
            if incoming + inner > budget:
                break
            offer(behind, i, j + 1, steps(incoming), steps(incoming + inner), work)
    if not np.isfinite(least[0, 0, -1]):
        return None
    blocks, i, behind, left = list[_Block](), 0, 0, room - 1
    while i < count:
        stop = int(until[behind, i, left])
        coming = _coming_in(costs[i], bool(behind), bool(stop))
        left -= steps(coming if stop else coming + costs[i].kept_bytes)
        if stop:
            blocks.append((i, stop))
        i, behind = stop or i + 1, int(bool(stop))
    return blocks
