"""Gradients to be compared: of large ones some rows, which stand for all of them.

Copies of all gradients would need several times the weights' memory, and minutes for a large model.
What mixes samples, or is divided by something else than their number, shows in every row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch

from legroom.backends.torch.slices.as_arrays import as_array

__all__ = ["Thinned"]

_MOST = 2**16  # entries that are copied as they are, about


class Thinned:
    """Cuts gradients down, the same one to the same rows each time."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, Any] = {}

    def __call__(self, key: Hashable, gradient: Any) -> Any:
        """A gradient as an array; None for none.

        Args:
            key: Whose it is. Which rows are taken is chosen by the first one: the largest are
                among them, since of an embedding most rows have none.
            gradient: The gradient.
        """
        if gradient is None or gradient.numel() <= _MOST or gradient.dim() == 0:
            return as_array(gradient)
        table = gradient.detach()
        if table.is_sparse:
            return as_array(self._sparse_rows(key, table.coalesce()))
        table = table.reshape(len(table), -1)
        if key not in self._rows:
            self._rows[key] = _chosen(table)
        return as_array(table[self._rows[key]][:, :: _step(table)])

    def _sparse_rows(self, key: Hashable, gradient: Any) -> Any:
        """The rows of a sparse gradient, with zeros where it has none."""
        there = gradient.indices()[0]
        table = gradient.values().reshape(len(there), -1)
        if key not in self._rows:
            self._rows[key] = there[_chosen(table)] if len(there) else there
        rows = self._rows[key]
        made = table.new_zeros((len(rows), table.shape[1]))
        for place, row in enumerate(rows.tolist()):
            found = (there == row).nonzero()
            if len(found):
                made[place] = table[found[0, 0]]
        return made[:, :: _step(table)]


def _step(table: Any) -> int:
    """Which columns are taken: every so many."""
    return max(1, table.shape[1] * 2 // _MOST)


def _chosen(table: Any) -> Any:
    """The numbers of the largest rows, and of as many that are evenly spread."""
    rows, columns = table.shape
    half = min(rows, max(1, _MOST // 2 // max(1, columns)))
    norms = torch.linalg.vector_norm(table, ord=math.inf, dim=1)
    largest = norms.topk(half).indices
    spread = torch.arange(0, rows, max(1, rows // half), device=table.device)
    return torch.unique(torch.cat([largest, spread]))
