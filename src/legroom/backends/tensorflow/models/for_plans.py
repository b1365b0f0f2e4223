"""What a plan asks of a model: what couples its samples, and its half."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.core.errors import UnsupportedModel

__all__ = ["coupling_layers", "in_half_precision"]


def coupling_layers(model: Any) -> list[str]:
    """The layers that look across the batch while training, as far as their class tells."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


@contextlib.contextmanager
def in_half_precision(model: Any, policy: str = "mixed_float16") -> Iterator[Any]:
    """A copy of a model in mixed precision, whose weights have no memory.

    Raises:
        UnsupportedModel: If the model can't be copied: a subclassed one, most often.
    """

    def halved(layer: Any) -> Any:
        config = layer.get_config()
        if not isinstance(layer, keras.layers.InputLayer):
            config["dtype"] = policy
        return type(layer).from_config(config)

    with untouched(model), without_memory():
        try:
            copy = keras.models.clone_model(model, clone_function=halved)
            settings = model.get_compile_config()
            copy.compile_from_config(settings)
        except Exception as error:
            raise UnsupportedModel(
                f"{model.name!r} can't be copied in mixed precision: {error}"
            ) from error
        yield copy
