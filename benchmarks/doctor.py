"""What watching costs: a training step watched over one that is not, in one process.

Plain and watched rounds take turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import legroom

from clock import Clock  # isort: skip
from overhead import convolutional, toy  # isort: skip


def fits(name: str, rounds: int) -> dict[str, float]:
    """`fit` with and without the callback; epochs of it, the first of each left out."""
    model, x, y, size = {"toy": toy, "convolutional": convolutional}[name]()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=size, verbose=0)
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        for watched in (0, 1) if turn % 2 else (1, 0):
            clock = Clock()
            extra = [legroom.watch(quiet=True)] if watched else []
            model.fit(x, y, batch_size=size, epochs=4, verbose=0, callbacks=[*extra, clock])
            times[watched].append(min(clock.seconds[1:]))
    return _compared(times, len(x) / size)


def loop(rounds: int) -> dict[str, float]:
    """A loop of one's own over a `tf.function`, inside and outside of a watch."""
    model, x, y, size = convolutional()
    optimizer = keras.optimizers.Adam()
    loss = keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)
        return value

    images, labels = tf.constant(x[:size]), tf.constant(y[:size])
    step(images, labels)

    def run() -> float:
        began = time.perf_counter()
        for _ in range(40):
            float(step(images, labels))
        return time.perf_counter() - began

    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        for watched in (0, 1) if turn % 2 else (1, 0):
            if watched:
                with legroom.watch(quiet=True):
                    times[1].append(run())
            else:
                times[0].append(run())
    return _compared(times, 40)


def _compared(times: list[list[float]], steps: float) -> dict[str, float]:
    ratios = [watched / plain for plain, watched in zip(*times, strict=True)]
    return {
        "plain_ms": statistics.median(times[0]) / steps * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_of_best": min(times[1]) / min(times[0]),
    }


if __name__ == "__main__":
    np.random.seed(0)
    which, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps(loop(count) if which == "loop" else fits(which, count)))
