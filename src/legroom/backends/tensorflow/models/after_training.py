"""What a trained model can be made into, for use and not for training; with sizes measured."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["compressed_bytes", "pruned_model", "tflite_bytes"]


def pruned_model(model: Any, share: float) -> Any:
    """A copy with zeros for the weights that are nearest to zero, matrix by matrix.

    Args:
        model: The model.
        share: How many of each matrix's weights.
    """
    copy = keras.models.clone_model(model)
    copy.set_weights([_pruned(weights, share) for weights in model.get_weights()])
    return copy


def compressed_bytes(model: Any) -> int:
    """What the weights take in a file that is compressed."""
    return sum(len(zlib.compress(weights.tobytes(), 1)) for weights in model.get_weights())


def tflite_bytes(model: Any) -> int:
    """The size of a TFLite file of a model, with weights of 8 bits."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with contextlib.redirect_stdout(io.StringIO()), _native_log_dropped():
        return len(converter.convert())


@contextlib.contextmanager
def _native_log_dropped() -> Iterator[None]:
    """Drop what C++ code writes to stderr: the converter tells of each of its steps there."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _pruned(weights: Any, share: float) -> Any:
    if weights.ndim < 2 or not np.issubdtype(weights.dtype, np.floating):
        return weights  # biases, and statistics of normalizations
    sizes = np.abs(weights)
    return np.where(sizes < np.quantile(sizes, share), np.zeros_like(weights), weights)
