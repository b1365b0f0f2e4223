"""Layers that keep what they were given in eight bits until their gradients are asked for.

A layer's gradients need what went into it. Here that is kept as whole numbers from 0 to 255 with a
range for each channel, a quarter of float32, and the layer runs once more on what they stand for.
What the model computes is the same; its gradients are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from legroom.backends.tensorflow.recompute.again import run_recomputed

__all__ = ["EightBits", "wrapped"]

_LEVELS = 255.0
_TINY = 1e-30  # the step of a channel that has one value only
# Layers of one input whose gradients need it as a whole.
_KINDS = frozenset({
    "Activation", "AveragePooling1D", "AveragePooling2D", "BatchNormalization", "Conv1D", "Conv2D",
    "Conv2DTranspose", "Conv3D", "Dense", "DepthwiseConv2D", "ELU", "GroupNormalization",
    "LayerNormalization", "LeakyReLU", "MaxPooling1D", "MaxPooling2D", "PReLU", "ReLU",
    "SeparableConv2D",
})  # fmt: skip


@keras.saving.register_keras_serializable(package="legroom")
class EightBits(keras.layers.Wrapper):
    """Runs a layer that keeps its input in eight bits while it trains."""

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.supports_masking = layer.supports_masking

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Run it; as ever, where nothing is trained."""
        if not training:
            return self.layer(inputs)
        return run_recomputed(
            lambda tensors: self.layer(tensors[0]), [inputs], [self.layer], packing=_Packing()
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The layer's own."""
        return self.layer.compute_output_shape(input_shape)


def wrapped(config: dict[str, Any]) -> dict[str, Any]:
    """A layer's part of an architecture, wrapped; as it is, where that would keep no less."""
    if config.get("class_name") not in _KINDS or config.get("module") != "keras.layers":
        return config
    outer: dict[str, Any] = {k: config[k] for k in ("name", "inbound_nodes") if k in config}
    inner = {key: config[key] for key in config if key not in outer}
    settings = {"name": config["config"]["name"], "layer": inner}
    return {
        **outer, "module": EightBits.__module__, "class_name": "EightBits",
        "registered_name": "legroom>EightBits", "config": settings,
    }  # fmt: skip


class _Packing:
    """The inputs of one call in eight bits, and back."""

    def __init__(self) -> None:
        self._types: list[Any] = []

    def pack(self, tensors: Sequence[Any]) -> list[Any]:
        """What is kept: for each tensor whole numbers, their step, and where they begin."""
        kept: list[Any] = []
        for x in tensors:
            small = not x.dtype.is_floating or x.shape.rank < 2
            self._types.append(None if small else x.dtype)
            kept += [x] if small else _rounded(x)
        return kept

    def unpack(self, kept: Sequence[Any]) -> list[Any]:
        """The tensors, nearly as they were."""
        parts = iter(kept)
        tensors = []
        for dtype in self._types:
            x = next(parts)
            if dtype is not None:
                step, low = next(parts), next(parts)
                x = tf.cast(tf.cast(x, tf.float32) * step + low, dtype)
            tensors.append(x)
        return tensors


def _rounded(x: Any) -> list[Any]:
    x = tf.cast(x, tf.float32)
    axes = list(range(x.shape.rank - 1))
    low = tf.reduce_min(x, axes)
    step = tf.maximum((tf.reduce_max(x, axes) - low) / _LEVELS, _TINY)
    return [tf.cast(tf.round((x - low) / step), tf.uint8), step, low]
