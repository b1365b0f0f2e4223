"""What a trained model can be made into, for use and not for training; with sizes measured."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from legroom.backends.keras.models.reading import weight_bytes
from legroom.backends.keras.models.rebuilding import compressed_bytes, int8_model, pruned_model
from legroom.backends.tensorflow.graph.untouched import untouched

__all__ = ["int8_bytes", "int8_model", "pruned_bytes", "pruned_model", "tflite_bytes"]


def int8_bytes(model: Any) -> tuple[int, list[str]]:
    """The weights of a model that holds int8 where it can; and the layers that can."""
    with untouched(model):
        made, changed = int8_model(model)
        return weight_bytes(made), changed


def pruned_bytes(model: Any, share: float) -> tuple[int, int]:
    """The weights in a compressed file, as they are and pruned."""
    with untouched(model):
        return compressed_bytes(model), compressed_bytes(pruned_model(model, share))


def tflite_bytes(model: Any) -> int:
    """The size of a TFLite file of a model, with weights of 8 bits."""
    with untouched(model):
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
