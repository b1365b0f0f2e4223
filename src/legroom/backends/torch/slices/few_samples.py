"""A few samples of a batch, to try a step on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legroom.backends.keras.slices import few_samples
from legroom.backends.keras.slices.few_samples import AMONG, SMALL_SAMPLE
from legroom.backends.torch.step import batch
from legroom.backends.torch.step.arguments import Listed

__all__ = ["in_two", "unlike"]


def in_two(tiny: Any, few: int) -> list[tuple[int, int, Any]]:
    """The first sample, and the rest."""
    first = next(batch.slices(tiny, few, 1))
    rest = batch.map_leaves(lambda x: x[1:] if batch.leading(x) == few else x, tiny)
    return [first, (1, few - 1, rest)]


def unlike(data: Any, samples: int, few: int) -> list[int]:
    """A few samples that differ in how much of them counts, where any do."""
    among = min(samples, AMONG)
    heads = []
    for leaf in batch.flatten(data):
        if isinstance(leaf, Listed):
            continue
        if batch.leading(leaf) == samples and np.prod(leaf.shape) <= samples * SMALL_SAMPLE:
            head = leaf[:among]
            if isinstance(head, torch.Tensor):
                head = head.detach()
                # NumPy has no bfloat16.
                head = (head.float() if head.is_floating_point() else head).cpu().numpy()
            if head.dtype.kind in "biufc":
                heads.append(head)
    return few_samples.unlike(heads, among, few)
