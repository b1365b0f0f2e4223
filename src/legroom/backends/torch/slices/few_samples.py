"""A few samples of a batch, to try a step on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legroom.backends.torch.step import batch

__all__ = ["in_two", "unlike"]

_AMONG = 256
_SMALL_SAMPLE = 4096  # entries


def in_two(tiny: Any, few: int) -> list[tuple[int, int, Any]]:
    """The first sample, and the rest."""
    first = next(batch.slices(tiny, few, 1))
    rest = batch.map_leaves(lambda x: x[1:] if batch.leading(x) == few else x, tiny)
    return [first, (1, few - 1, rest)]


def unlike(data: Any, samples: int, few: int) -> list[int]:
    """A few samples that differ in how much of them is zero, where any do: masks and lengths."""
    among = min(samples, _AMONG)
    filled = np.zeros(among)
    for leaf in batch.flatten(data):
        if batch.leading(leaf) != samples:
            continue
        if np.prod(leaf.shape) <= samples * _SMALL_SAMPLE:
            head = leaf[:among]
            head = head.detach().float().cpu().numpy() if isinstance(head, torch.Tensor) else head
            if head.dtype.kind in "biufc":
                filled += (head != 0).reshape(among, -1).sum(axis=1)
    order = np.argsort(filled, kind="stable")
    return sorted(int(order[i]) for i in np.linspace(0, among - 1, few).round().astype(int))
