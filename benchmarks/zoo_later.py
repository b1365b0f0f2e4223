"""Models written down after the predictions were thought done, as their users would write them.

The first three were far off, and were looked into; the other three were not.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

__all__ = ["detector", "focal", "language", "points", "segmenter", "windows", "xception_unet"]


def _columns(x: Any, width: int) -> Any:
    x = layers.Conv1D(width, 1)(x)
    return layers.Activation("relu")(layers.BatchNormalization()(x))


def _turned(x: Any, axes: int) -> Any:
    """Points turned by a matrix that a small network makes of them."""
    y = layers.GlobalMaxPooling1D()(_columns(_columns(x, 32), 256))
    y = layers.Dense(axes * axes, activity_regularizer=_NearlyOrthogonal(axes))(y)
    return layers.Dot(axes=(2, 1))([x, layers.Reshape((axes, axes))(y)])


class _NearlyOrthogonal(keras.regularizers.Regularizer):
    """Compares the matrices of all samples with those of all others."""

    def __init__(self, axes: int) -> None:
        self._axes = axes

    def __call__(self, x: Any) -> Any:
        x = ops.reshape(x, (-1, self._axes, self._axes))
        products = ops.reshape(ops.tensordot(x, x, axes=(2, 2)), (-1, self._axes, self._axes))
        return ops.sum(0.001 * ops.square(products - ops.eye(self._axes)))


def points() -> Any:
    inputs = keras.Input((512, 3))
    x = _columns(_turned(inputs, 3), 32)
    x = _columns(_turned(x, 32), 256)
    x = layers.Dropout(0.3)(layers.Dense(128, "relu")(layers.GlobalMaxPooling1D()(x)))
    return keras.Model(inputs, layers.Dense(10, "softmax")(x))


def language() -> Any:
    inputs = keras.Input((80,), dtype="int32")
    x = layers.Embedding(10000, 192)(inputs)
    for _ in range(2):
        y = layers.MultiHeadAttention(2, 96, dropout=0.1)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(192)(layers.Dense(384, "gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    return keras.Model(inputs, layers.Dense(10000)(x))


def detector() -> Any:
    x = inputs = keras.Input((96, 96, 3))
    levels = []
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
        levels.append(layers.Conv2D(64, 1)(x))
    for lower, upper in ((1, 2), (0, 1)):
        up = layers.UpSampling2D()(levels[upper])
        levels[lower] = layers.Add()([levels[lower], up])
    heads = [layers.Conv2D(9 * count, 3, padding="same") for count in (4, 20)]
    parts = [
        layers.Concatenate(axis=1)([layers.Reshape((-1, count))(head(x)) for x in levels])
        for head, count in zip(heads, (4, 20), strict=True)
    ]
    return keras.Model(inputs, layers.Concatenate()(parts))


def focal(labels: Any, outputs: Any) -> Any:
    """The loss of the detector: of boxes, and of classes, of which the easy ones count less."""
    off = ops.abs(labels[..., :4] - outputs[..., :4])
    boxes = ops.where(off < 1.0, 0.5 * off**2, off - 0.5)
    chances = ops.sigmoid(outputs[..., 4:])
    classes = ops.binary_crossentropy(labels[..., 4:], outputs[..., 4:], from_logits=True)
    return ops.mean(ops.sum(boxes, -1) + ops.sum((1 - chances) ** 2.0 * classes, -1))


def segmenter() -> Any:
    x = inputs = keras.Input((128, 128, 3))
    for width in (32, 64):
        x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    far = [
        layers.Conv2D(64, 3, padding="same", dilation_rate=rate, activation="relu")(x)
        for rate in (1, 6, 12)
    ]
    whole = layers.Conv2D(64, 1)(layers.AveragePooling2D(32)(x))
    whole = layers.UpSampling2D(32, interpolation="bilinear")(whole)
    x = layers.Conv2D(64, 1, activation="relu")(layers.Concatenate()([*far, whole]))
    x = layers.DepthwiseConv2D(3, padding="same")(layers.UpSampling2D(interpolation="bilinear")(x))
    x = layers.UpSampling2D(interpolation="bilinear")(layers.Conv2D(64, 1, activation="relu")(x))
    return keras.Model(inputs, layers.Conv2D(20, 1)(x))


class _Windows(layers.Layer):
    """Attention within windows of an image, which may be shifted."""

    def __init__(self, side: int, shift: int) -> None:
        super().__init__()
        self.side, self.shift = side, shift
        self.attention = layers.MultiHeadAttention(3, 16)

    def call(self, x: Any) -> Any:
        """Forward."""
        _, height, width, depth = x.shape
        rows, columns = height // self.side, width // self.side
        x = ops.roll(x, (-self.shift, -self.shift), (1, 2))
        x = ops.reshape(x, (-1, rows, self.side, columns, self.side, depth))
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, self.side**2, depth))
        x = self.attention(x, x)
        x = ops.reshape(x, (-1, rows, columns, self.side, self.side, depth))
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, height, width, depth))
        return ops.roll(x, (self.shift, self.shift), (1, 2))


def windows() -> Any:
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(48, 4, strides=4)(inputs)
    for shift in (0, 2, 0, 2):
        x = x + _Windows(4, shift)(layers.LayerNormalization()(x))
        y = layers.Dense(192, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(48)(y)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def xception_unet() -> Any:
    inputs = keras.Input((96, 96, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same")(inputs)
    before = x = layers.Activation("relu")(layers.BatchNormalization()(x))
    for width in (64, 128):
        for _ in range(2):
            x = layers.SeparableConv2D(width, 3, padding="same")(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        before = x = layers.add([x, layers.Conv2D(width, 1, strides=2, padding="same")(before)])
    for width in (128, 64, 32):
        for _ in range(2):
            x = layers.Conv2DTranspose(width, 3, padding="same")(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D()(x)
        before = x = layers.add([x, layers.Conv2D(width, 1)(layers.UpSampling2D()(before))])
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same", activation="softmax")(x))
