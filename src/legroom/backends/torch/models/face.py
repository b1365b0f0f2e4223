"""Models that are read, changed, or made smaller for use: what is Keras's on any framework."""

from __future__ import annotations

from typing import Any, NoReturn

from legroom.backends.keras.models.identity import data_identity
from legroom.backends.keras.models.identity import identity_without_tensorflow as identity
from legroom.backends.keras.models.imagined_models import LeanerModels
from legroom.backends.keras.models.reading import (
    architecture,
    coupling_layers,
    layer_facts,
    open_axes,
    parameters,
    slot_bytes,
    weight_bytes,
)
from legroom.backends.keras.models.rebuilding import (
    compile_by_default,
    compressed_bytes,
    int8_model,
    pruned_model,
)
from legroom.backends.keras.models.specs import check_model
from legroom.backends.torch.forecast.fakes import without_memory
from legroom.backends.torch.forecast.keras_step import untouched
from legroom.core.errors import UnsupportedModelError

__all__ = [
    "LEANER_MODELS",
    "architecture",
    "check_model",
    "compile_by_default",
    "coupling_layers",
    "data_identity",
    "identity",
    "int8_bytes",
    "int8_model",
    "layer_facts",
    "open_axes",
    "parameters",
    "pruned_bytes",
    "pruned_model",
    "slot_bytes",
    "tflite_bytes",
    "weight_bytes",
]

LEANER_MODELS = LeanerModels(untouched, without_memory, {})


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
    raise UnsupportedModelError(f"{model.name!r} runs on PyTorch, and TensorFlow writes TFLite.")
