"""Batches as Keras hands them over: nested structures of tensors that share their first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

__all__ = ["Slices", "as_tensors", "batch_size", "concatenate", "leading", "pick",
           "signature", "slice_batch"]  # fmt: skip


def as_tensors(data: Any) -> Any:
    """Arrays as tensors, so that a slice of them is a tensor of a known shape."""
    return tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, data
    )


def signature(data: Any) -> tuple[Any, ...]:
    """What a step is traced for: the shapes and types of a batch, and the other objects in it."""
    return tuple(_kind(leaf) for leaf in tree.flatten(data))


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, np.ndarray)):
        return type(leaf), leaf.dtype, tuple(leaf.shape)
    if isinstance(leaf, tf.data.Iterator):
        return leaf.element_spec  # another iterator of the kind is the same step
    return (type(leaf), leaf) if isinstance(leaf, (int, float, str, type(None))) else id(leaf)


def leading(leaf: Any) -> int | None:
    """The length of a leaf's first axis; None for scalars and for what is no tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    shape = getattr(leaf, "shape", None)
    if shape is None or len(shape) == 0 or shape[0] is None:
        return None
    return int(shape[0])


def batch_size(data: Any) -> int | None:
    """The number of samples in a batch: the first axis of its first tensor that has one."""
    for leaf in tree.flatten(data):
        if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, np.ndarray)):
            size = leading(leaf)
            if size is not None:
                return size
    return None


class Slices(Sequence[Any]):
    """The slices of a batch, each cut when it is asked for: all at once are a batch more."""

    def __init__(self, data: Any, samples: int, slice_size: int) -> None:
        self._data = data
        self._samples = samples
        self._starts = range(0, samples, slice_size)
        self.sizes = [min(slice_size, samples - start) for start in self._starts]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: Any) -> Any:
        start = self._starts[number]
        return slice_batch(self._data, start, start + self.sizes[number], self._samples)


def slice_batch(data: Any, start: int, stop: int, samples: int) -> Any:
    """The samples from start to stop of every leaf that has `samples` of them.

    Other leaves (scalars, tables) are passed whole.
    """

    def cut(leaf: Any) -> Any:
        if leaf is None or leading(leaf) != samples:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            shape = leaf.shape.as_list()
            begin = [start] + [0] * (len(shape) - 1)
            return tf.sparse.slice(leaf, begin, [stop - start, *shape[1:]])
        if isinstance(leaf, tf.Tensor):
            # Where the batch lies in host memory only the slice should travel to the device.
            with tf.device(leaf.device):
                return leaf[start:stop]
        return leaf[start:stop]

    return tree.map_structure(cut, data)


def pick(data: Any, numbers: Sequence[int], samples: int) -> Any:
    """Some samples of every leaf that has `samples` of them, by number, in ascending order."""

    def take(leaf: Any) -> Any:
        if leaf is None or leading(leaf) != samples:
            return leaf
        if isinstance(leaf, (tf.Tensor, tf.RaggedTensor)):
            return tf.gather(leaf, list(numbers))
        return concatenate([slice_batch(leaf, n, n + 1, samples) for n in numbers])

    return tree.map_structure(take, data)


def concatenate(parts: Sequence[Any]) -> Any:
    """Per-sample results of the slices, put together again."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.concat(list(parts), axis=0)
