"""Models changed to be leaner: by the changes that are Keras's on any framework."""

from __future__ import annotations

from legroom.backends.jax.forecast.imagined import without_memory
from legroom.backends.keras.models.imagined_models import LeanerModels
from legroom.backends.keras.models.untouched import untouched

__all__ = ["LEANER_MODELS"]

LEANER_MODELS = LeanerModels(untouched, without_memory, {})
