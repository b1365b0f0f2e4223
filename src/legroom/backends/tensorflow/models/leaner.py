"""Models changed to be leaner: with the one change that TensorFlow alone can make."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from legroom.backends.keras.models.imagined_models import LeanerModels
from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.backends.tensorflow.recompute.eight_bits import wrapped
from legroom.messages.layers import LayerFacts

__all__ = ["LEANER_MODELS"]


def _eight_bits(config: dict[str, Any], layers: Sequence[LayerFacts]) -> dict[str, Any] | None:
    """The same, with layers that keep their inputs in eight bits for the gradients."""
    changed = copy.deepcopy(config)
    own = changed["config"].get("layers") or []
    own[:] = new = [wrapped(layer) for layer in own]
    changed.pop("build_config", None)
    return changed if any(layer["class_name"] == "EightBits" for layer in new) else None


LEANER_MODELS = LeanerModels(untouched, without_memory, {"eight_bits": _eight_bits})
