"""Saved models, read without loading their weights. Importing this imports no framework."""

from __future__ import annotations

from typing import Any

from legroom.backends.keras.models.model_file import read_config

__all__ = ["imagined_model", "read_config"]


def imagined_model(config: dict[str, Any], optimizer: Any = "adam") -> Any:
    """A model of a saved architecture, compiled, whose weights have no memory."""
    from legroom.backends.jax.forecast.imagined import without_memory
    from legroom.backends.keras.models import imagined_models

    return imagined_models.imagined_model(config, optimizer, without_memory)
