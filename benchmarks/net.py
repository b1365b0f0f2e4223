"""The net that several benchmarks train."""

from __future__ import annotations

import keras
from keras import layers

__all__ = ["convolutional_net"]


def convolutional_net(side: int) -> keras.Model:
    """Two convolutions, for square images with so many pixels a side."""
    return keras.Sequential(
        [
            keras.Input((side, side, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, "softmax"),
        ]
    )
