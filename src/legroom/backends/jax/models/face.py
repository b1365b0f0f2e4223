"""Models that are read: what is Keras's on any framework."""

from __future__ import annotations

from legroom.backends.keras.models.identity import data_identity
from legroom.backends.keras.models.identity import identity_without_tensorflow as identity
from legroom.backends.keras.models.reading import (
    architecture,
    coupling_layers,
    layer_facts,
    open_axes,
    parameters,
    slot_bytes,
    weight_bytes,
)
from legroom.backends.keras.models.rebuilding import compile_by_default
from legroom.backends.keras.models.specs import check_model

__all__ = [
    "architecture",
    "check_model",
    "compile_by_default",
    "coupling_layers",
    "data_identity",
    "identity",
    "layer_facts",
    "open_axes",
    "parameters",
    "slot_bytes",
    "weight_bytes",
]
