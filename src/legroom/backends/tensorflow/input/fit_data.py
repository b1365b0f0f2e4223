"""What a call of `fit` was given: the size of its batches, and what one looks like."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from legroom.backends.tensorflow.step.batch import batch_size

__all__ = ["fitted_data"]

_KERAS_DEFAULT = 32


def fitted_data(
    x: Any, y: Any = None, sample_weight: Any = None, size: int | None = None
) -> tuple[int | None, Any]:
    """The batch size, and the data as an estimate takes it.

    Args:
        x: As `fit` got it: arrays, a data set, a generator.
        y: The targets, where they are apart.
        sample_weight: The weights, where they are apart.
        size: The batch size, where `fit` was told.

    Returns:
        The size of a batch, None where it can't be told without reading one; and a batch, or
        what shows one's shapes.
    """
    if isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        first = next(iter(x.take(1)), None)
        return (None if first is None else batch_size(first)), x.element_spec
    if isinstance(x, keras.utils.PyDataset):
        first = x[0]
        return batch_size(first), first
    known = isinstance(x, (list, tuple, dict)) or hasattr(x, "__array__")
    if not known and hasattr(x, "__iter__"):
        # A generator gives its batches once; here that is the end of it, nothing is trained.
        first = next(iter(x))
        return batch_size(first), first
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    data = x if len(parts) == 1 and not isinstance(x, (list, tuple)) else parts
    return size or _KERAS_DEFAULT, data
