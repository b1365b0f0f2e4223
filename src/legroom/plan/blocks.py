"""Which layers to recompute, so that a step fits with the least work done twice. Pure.

Layers run in a row. A layer's activations are kept for its gradient, or it is in a block, of which
only what comes in is kept; when the gradient arrives the block runs again and has all its
activations for as long as that takes. So a step holds what is kept, what comes in to every block,
and the activations of the largest block. For each size of the largest block the cheapest choice of
blocks is found exactly, up to the rounding of bytes, layer after layer (dynamic programming): for
a row of layers that is faster and surer than a general solver.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from legroom.core.traces import LayerCost

__all__ = ["choose_blocks", "held_bytes", "leanest_blocks"]

_Block = tuple[int, int]

# How finely bytes are told apart, and how many sizes of the largest block are tried.
_STEPS = 256
_SIZES = 24
# No block is longer than this: the work of looking grows with it, and the gain does not.
_LONGEST = 96


def held_bytes(costs: Sequence[LayerCost], blocks: Sequence[_Block]) -> int:
    """The most bytes that a step holds for its gradients with these blocks.

    Args:
        costs: The layers in order.
        blocks: Where each block begins, and the place after its end.
    """
    inside = {i for start, stop in blocks for i in range(start, stop)}
    kept = sum(cost.kept_bytes for i, cost in enumerate(costs) if i not in inside)
    incoming = sum(costs[start].incoming_bytes for start, _ in blocks)
    largest = max((_inner(costs, block) for block in blocks), default=0)
    return kept + incoming + largest


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
    best: tuple[float, list[_Block]] | None = None
    for largest in _sizes(costs, budget):
        found = _cheapest(costs, budget - largest, largest, _LONGEST if joined else 1)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else best[1]


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


def _inner(costs: Sequence[LayerCost], block: _Block) -> int:
    return sum(cost.kept_bytes for cost in costs[block[0] : block[1]])


def _sizes(costs: Sequence[LayerCost], budget: int) -> list[int]:
    """Sizes that the largest block might have, evenly spread on the scale of ratios."""
    smallest = max(1, min((c.kept_bytes for c in costs if c.kept_bytes), default=1))
    return sorted({int(size) for size in np.geomspace(smallest, max(budget, smallest), _SIZES)})


def _cheapest(
    costs: Sequence[LayerCost], budget: int, largest: int, longest: int
) -> tuple[float, list[_Block]] | None:
    """The least work with no block larger than a size and the rest within a budget."""
    if budget < 0:
        return None
    step = max(1, -(-budget // _STEPS))
    room = budget // step + 1
    count = len(costs)
    # least[i][m]: the least work on the layers from the i-th on with m steps of memory left.
    least = np.full((count + 1, room), np.inf)
    least[count] = 0.0
    until: npt.NDArray[np.int32] = np.zeros(
        (count, room), np.int32
    )  # the end of the block that begins here; 0: kept
    for i in range(count - 1, -1, -1):
        _offer(least, until, i, i + 1, -(-costs[i].kept_bytes // step), 0.0, 0)
        incoming = -(-costs[i].incoming_bytes // step)
        inner, work = 0, 0.0
        for j in range(i, min(count, i + longest)):
            inner += costs[j].kept_bytes
            work += costs[j].work
            if inner > largest:
                break
            _offer(least, until, i, j + 1, incoming, work, j + 1)
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
    return float(least[0, -1]), blocks


def _offer(
    least: npt.NDArray[np.float64],
    until: npt.NDArray[np.int32],
    i: int,
    after: int,
    taken: int,
    work: float,
    mark: int,
) -> None:
    """Take a choice for the i-th layer wherever it is cheaper than what is known."""
    room = least.shape[1]
    if taken >= room:
        return
    offered = least[after, : room - taken] + work
    better = offered < least[i, taken:]
    least[i, taken:][better] = offered[better]
    until[i, taken:][better] = mark
