"""What a trained model can be made into, for use: what is Keras's on any framework."""

from __future__ import annotations

from typing import Any, NoReturn

from legroom.backends.keras.models.reading import weight_bytes
from legroom.backends.keras.models.rebuilding import compressed_bytes, int8_model, pruned_model
from legroom.backends.keras.models.untouched import untouched
from legroom.core.errors import UnsupportedModelError

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


def tflite_bytes(model: Any) -> NoReturn:
    """The size of a TFLite file: TensorFlow writes those."""
    raise UnsupportedModelError(f"{model.name!r} runs on JAX, and TensorFlow writes TFLite.")
