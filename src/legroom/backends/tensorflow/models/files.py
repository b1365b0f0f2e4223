"""Saved models, read without loading their weights. Importing this imports no framework."""

from __future__ import annotations

from typing import Any

from legroom.backends.keras.model_file import build_config, read_config

__all__ = ["imagined_model", "read_config"]


def imagined_model(config: dict[str, Any], optimizer: Any = "adam") -> Any:
    """A model of a saved architecture, compiled, whose weights have no memory."""
    from legroom.backends.keras.rebuilding import compile_by_default
    from legroom.backends.tensorflow.graph.untouched import without_memory

    with without_memory():
        model = build_config(config)
    try:
        model.compile_from_config(config["compile_config"])
    except Exception:  # it was not compiled, or with something of the user's own
        compile_by_default(model, optimizer)
    return model
