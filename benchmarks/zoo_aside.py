"""Models that were set aside later, in the place of those that had to be looked into."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

__all__ = ["conv_lstm", "graph_attention", "unet_of_volumes"]


def unet_of_volumes() -> Any:
    x = inputs = keras.Input((16, 32, 32, 2))
    skips = []
    for width in (12, 24):
        x = layers.Conv3D(width, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        skips.append(x)
        x = layers.MaxPooling3D()(x)
    x = layers.Conv3D(48, 3, padding="same", activation="relu")(x)
    for width, skip in zip((24, 12), reversed(skips), strict=True):
        x = layers.Conv3DTranspose(width, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv3D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv3D(3, 1, activation="softmax")(x))


def conv_lstm() -> Any:
    inputs = keras.Input((6, 32, 32, 3))
    x = layers.ConvLSTM2D(16, 3, padding="same", return_sequences=True)(inputs)
    x = layers.LayerNormalization()(x)
    x = layers.ConvLSTM2D(24, 3, padding="same")(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x))


class GraphAttention(layers.Layer):
    """Nodes attend to their neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = layers.Dense(width)
        self.sends = layers.Dense(1)
        self.receives = layers.Dense(1)

    def call(self, nodes: Any, edges: Any) -> Any:
        """Forward."""
        x = self.project(nodes)
        scores = self.receives(x) + ops.transpose(self.sends(x), (0, 2, 1))
        scores = ops.where(edges > 0, ops.leaky_relu(scores, 0.2), -1e9)
        return ops.elu(ops.matmul(ops.softmax(scores), x))


def graph_attention() -> Any:
    nodes, edges = keras.Input((96, 24)), keras.Input((96, 96))
    x = nodes
    for width in (64, 64, 32):
        x = layers.Dropout(0.2)(GraphAttention(width)(x, edges))
    return keras.Model([nodes, edges], layers.Dense(4, "softmax")(x))
