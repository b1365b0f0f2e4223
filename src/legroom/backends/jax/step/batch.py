"""Batches: nested structures of arrays that share their first axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from keras import tree

from legroom.backends.jax.step.layout import like_batch, parts

__all__ = ["batch_size", "concatenate", "cut", "flatten", "leading", "map_leaves", "nbytes", "pick",
           "shapes", "slices", "unflatten"]  # fmt: skip


def flatten(data: Any) -> list[Any]:
    """The leaves of a structure."""
    return list(tree.flatten(data))


def unflatten(data: Any, leaves: Sequence[Any]) -> Any:
    """A structure like another one, with other leaves."""
    return tree.pack_sequence_as(data, list(leaves))


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """A structure with a function of each leaf in its place."""
    return tree.map_structure(function, data)


def leading(leaf: Any) -> int | None:
    """The length of a leaf's first axis; None for scalars and for what is no array."""
    if isinstance(leaf, (jax.Array, np.ndarray)) and leaf.ndim:
        return int(leaf.shape[0])
    return None


def nbytes(data: Any) -> int:
    """What the arrays of a structure take."""
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in flatten(data))


def shapes(data: Any) -> Any:
    """What tells apart the batches that a program is compiled for."""
    return tuple(
        (x.shape, x.dtype) if hasattr(x, "dtype") else (None, str(x)) for x in flatten(data)
    )


def batch_size(data: Any) -> int | None:
    """The number of samples in a batch: the length of the first axis that most arrays share.

    None where there is something else than arrays: sparse ones, say, which can't be cut.
    """
    leaves = flatten(data)
    if any(isinstance(x, jax.experimental.sparse.JAXSparse) for x in leaves if _is_odd(x)):
        return None
    counted = Counter(n for leaf in leaves if (n := leading(leaf)) is not None)
    return max(counted, key=lambda n: counted[n], default=None)


def _is_odd(leaf: Any) -> bool:
    return type(leaf).__module__.startswith("jax.experimental")


def slices(data: Any, samples: int, size: int) -> Iterator[tuple[int, int, Any]]:
    """The slices of a batch, with where each begins and its samples.

    They are as few as the size allows, and all but the last of one size: each size is a program
    that has to be compiled. What does not have `samples` entries is passed whole. Of a batch that
    lies on several devices, each slice does.
    """
    least = max((parts(leaf) for leaf in flatten(data) if leading(leaf) == samples), default=1)
    size = -(-samples // -(-samples // max(size, least)))
    size = -(-size // least) * least
    for start in range(0, samples, size):
        stop = min(samples, start + size)
        yield start, stop - start, cut(data, start, stop, samples)


def pick(data: Any, numbers: Sequence[int], samples: int) -> Any:
    """Some samples of every leaf that has `samples` of them, by number."""
    chosen = np.array(numbers)
    return map_leaves(lambda x: x[chosen] if leading(x) == samples else x, data)


def concatenate(parts: Sequence[Any]) -> Any:
    """Per-sample results of the slices, put together again."""
    return parts[0] if len(parts) == 1 else jax.numpy.concatenate(list(parts))


def cut(data: Any, start: int, stop: int, samples: int) -> Any:
    """The samples from one number to another; what does not have `samples` entries is whole."""
    return map_leaves(lambda x: like_batch(x[start:stop], x) if leading(x) == samples else x, data)
