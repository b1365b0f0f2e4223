"""Models whose weights outweigh their activations, and small batches for them: what people have
when memory is short."""  # noqa: D205, D209

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from keras import layers
from net import convolutional_net

__all__ = ["MODELS", "OPTIMIZERS", "build", "build_application"]

Data = tuple[np.ndarray, np.ndarray]

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(1e-3),
    "momentum": lambda: keras.optimizers.SGD(1e-3, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-4),
    "adamw_clip": lambda: keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
}


def _dense(width: int, count: int) -> tuple[keras.Model, Data]:
    model = keras.Sequential(
        [
            keras.Input((width,)),
            *[layers.Dense(width, activation="relu") for _ in range(count)],
            layers.Dense(10),
        ]
    )
    rng = np.random.default_rng(0)
    return model, (rng.random((8, width), np.float32), rng.integers(0, 10, 8))


def _embedding() -> tuple[keras.Model, Data]:
    model = keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            layers.Embedding(400_000, 64),
            layers.GlobalAveragePooling1D(),
            layers.Dense(10),
        ]
    )
    rng = np.random.default_rng(0)
    return model, (rng.integers(0, 400_000, (64, 20), np.int32), rng.integers(0, 10, 64))


def _transformer() -> tuple[keras.Model, Data]:
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(2_000, 256)(inputs)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 64)(x, x))
        x = layers.LayerNormalization()(
            x + layers.Dense(256)(layers.Dense(1024, activation="gelu")(x))
        )
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
    rng = np.random.default_rng(0)
    return model, (rng.integers(0, 2_000, (16, 64), np.int32), rng.integers(0, 10, 16))


def _convolutional() -> tuple[keras.Model, Data]:
    rng = np.random.default_rng(0)
    return convolutional_net(72), (
        rng.random((32, 72, 72, 3), np.float32),
        rng.integers(0, 10, 32),
    )


MODELS: dict[str, Callable[[], tuple[keras.Model, Data]]] = {
    "dense4000x4": lambda: _dense(4000, 4),
    "dense2000x16": lambda: _dense(2000, 16),
    "dense1800x15": lambda: _dense(1800, 15),
    "embedding": _embedding,
    "transformer": _transformer,
    "convolutional": _convolutional,
}


def build_application(name: str, side: int, batch: int) -> tuple[keras.Model, Data]:
    """A model of keras.applications without its weights' download, for images of a size."""
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=10, classifier_activation=None
    )
    rng = np.random.default_rng(0)
    return model, (rng.random((batch, side, side, 3), np.float32), rng.integers(0, 10, batch))


def build(name: str, optimizer: str, *, jit: bool = False) -> tuple[keras.Model, Data]:
    """A compiled model and one batch; an application as Name:side:batch."""
    keras.utils.set_random_seed(0)
    if ":" in name:
        application, side, batch = name.split(":")
        model, data = build_application(application, int(side), int(batch))
    else:
        model, data = MODELS[name]()
    model.compile(
        OPTIMIZERS[optimizer](),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    return model, data
