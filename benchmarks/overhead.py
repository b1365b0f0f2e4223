"""What the guard costs when nothing goes wrong: guarded `fit` over plain `fit`, in one process."""

from __future__ import annotations

import functools
import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import legroom

from net import convolutional_net  # isort: skip
from turns import take_turns, untuned  # isort: skip


def toy() -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """Steps of about a millisecond."""
    model = keras.Sequential(
        [keras.Input((32,)), layers.Dense(64, "relu"), layers.Dense(10, "softmax")]
    )
    rng = np.random.default_rng(0)
    return model, rng.random((32 * 400, 32), np.float32), rng.integers(0, 10, 32 * 400), 32


def convolutional() -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """Steps of about fifty milliseconds."""
    model = convolutional_net(72)
    rng = np.random.default_rng(0)
    return model, rng.random((32 * 15, 72, 72, 3), np.float32), rng.integers(0, 10, 32 * 15), 32


def measure(name: str) -> dict[str, float]:
    """Take turns and compare."""
    build = {"toy": toy, "convolutional": convolutional}[name]
    _, x, y, size = build()
    data = untuned(tf.data.Dataset.from_tensor_slices((x, y)).batch(size))
    models = [build()[0], legroom.guard(build()[0])]

    def epoch(model: keras.Model) -> float:
        began = time.perf_counter()
        model.fit(data, verbose=0)
        return time.perf_counter() - began

    for model in models:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        epoch(model)
    plain, guarded = (functools.partial(epoch, model) for model in models)
    seen = take_turns(plain, guarded)
    return {**seen, "plain_ms": seen["plain_seconds"] / (len(x) / size) * 1e3}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
