"""What a call of `fit` was given: the size of its batches, and what one looks like."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from legroom.backends.keras.input.fit_calls import fitted_arrays
from legroom.backends.tensorflow.step.batch import batch_size

__all__ = ["fitted_data"]


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
    return fitted_arrays(x, y, sample_weight, size, batch_size)
