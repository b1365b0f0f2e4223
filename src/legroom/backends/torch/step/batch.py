"""Batches: nested structures of tensors that share their first axis."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from legroom.backends.torch.step.arguments import Listed

__all__ = ["batch_size", "concatenate", "flatten", "leading", "map_leaves", "pick", "slices",
           "unflatten"]  # fmt: skip


def flatten(data: Any) -> list[Any]:
    """The leaves of a structure."""
    return pytree.tree_leaves(data)


def unflatten(data: Any, leaves: Sequence[Any]) -> Any:
    """A structure like another one, with other leaves."""
    return pytree.tree_unflatten(list(leaves), pytree.tree_structure(data))


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """A structure with a function of each leaf in its place."""
    return pytree.tree_map(function, data)


def leading(leaf: Any) -> int | None:
    """The length of a leaf's first axis; None for scalars and for what is no tensor."""
    if isinstance(leaf, Listed):
        return len(leaf)
    if isinstance(leaf, (torch.Tensor, np.ndarray)) and len(leaf.shape):
        return int(leaf.shape[0])
    return None


def batch_size(data: Any) -> int | None:
    """The number of samples in a batch: the length of the first axis that most tensors share.

    Of several such lengths it is the first one. Lists of strings and of numbers are asked only
    where there is nothing else.
    """
    leaves = flatten(data)
    sure = [leaf for leaf in leaves if not isinstance(leaf, Listed) or leaf.sure]
    counted = Counter(n for leaf in sure or leaves if (n := leading(leaf)) is not None)
    return max(counted, key=lambda n: counted[n], default=None)


def slices(data: Any, samples: int, size: int, least: int = 1) -> Iterator[tuple[int, int, Any]]:
    """The slices of a batch, with where each begins and its samples; views, not copies.

    They are as few as the size allows, and as equal as can be: a last one of a single sample would
    be too little for BatchNorm. What does not have `samples` entries (scalars, tables) is passed
    whole.

    Args:
        data: The batch.
        samples: How many samples it has.
        size: How many a slice should have at most.
        least: How many each must have.
    """
    count = min(-(-samples // size), max(1, samples // least))
    for number in range(count):
        start, stop = number * samples // count, (number + 1) * samples // count
        yield start, stop - start, _cut(data, start, stop, samples)


def pick(data: Any, numbers: Sequence[int], samples: int) -> Any:
    """Some samples of every leaf that has `samples` of them, by number."""
    return map_leaves(lambda x: x[list(numbers)] if leading(x) == samples else x, data)


def concatenate(parts: Sequence[Any]) -> Any:
    """Per-sample results of the slices, put together again."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], Listed):
        return functools.reduce(operator.add, parts)
    return torch.cat(list(parts))


def _cut(data: Any, start: int, stop: int, samples: int) -> Any:
    return map_leaves(lambda x: x[start:stop] if leading(x) == samples else x, data)
