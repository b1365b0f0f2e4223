"""What the guard costs when nothing goes wrong: guarded `fit` over plain `fit`, in one process.

Plain and guarded epochs take turns, so that whatever else the machine does falls on both; the
ratio is of the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import keras
import numpy as np
from keras import layers

import legroom

from net import convolutional_net  # isort: skip


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
    return model, rng.random((32 * 30, 72, 72, 3), np.float32), rng.integers(0, 10, 32 * 30), 32


def measure(name: str, rounds: int) -> dict[str, float]:
    """Take turns and compare."""
    build = {"toy": toy, "convolutional": convolutional}[name]
    models = []
    for guarded in (False, True):
        model, x, y, size = build()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        if guarded:
            legroom.guard(model)
        models.append(model)
        model.fit(x, y, batch_size=size, verbose=0)
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        order = (0, 1) if turn % 2 else (1, 0)
        for which in order:
            began = time.perf_counter()
            models[which].fit(x, y, batch_size=size, verbose=0)
            times[which].append(time.perf_counter() - began)
    steps = len(x) / size
    plain, guarded_ = (statistics.median(series) for series in times)
    ratios = [g / p for p, g in zip(*times, strict=True)]
    return {
        "plain_ms": plain / steps * 1e3,
        "guarded_ms": guarded_ / steps * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_of_medians": guarded_ / plain,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
