"""What the floors above ask of a model that is read."""

from __future__ import annotations

from legroom.backends.keras.reading import (
    architecture,
    coupling_layers,
    gradient_bytes,
    is_recurrent,
    layer_facts,
    open_axes,
    parameters,
    slot_bytes,
    weight_bytes,
)
from legroom.backends.tensorflow.graph.specs import check_model
from legroom.backends.tensorflow.models.gradients import step_bytes

__all__ = [
    "architecture",
    "check_model",
    "coupling_layers",
    "gradient_bytes",
    "is_recurrent",
    "layer_facts",
    "open_axes",
    "parameters",
    "slot_bytes",
    "step_bytes",
    "weight_bytes",
]
