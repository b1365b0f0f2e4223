"""What watching costs: a training step watched over one that is not, in one process."""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import legroom

from clock import Clock  # isort: skip
from overhead import convolutional, toy  # isort: skip
from turns import take_turns  # isort: skip

STEPS = 40


def fits(name: str) -> dict[str, float]:
    """`fit` with and without the callback: its second epoch."""
    model, x, y, size = {"toy": toy, "convolutional": convolutional}[name]()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=size, verbose=0)

    def epoch(*watching: keras.callbacks.Callback) -> float:
        clock = Clock()
        model.fit(x, y, batch_size=size, epochs=2, verbose=0, callbacks=[*watching, clock])
        return clock.seconds[1]

    seen = take_turns(epoch, lambda: epoch(legroom.watch(quiet=True)))
    return {**seen, "plain_ms": seen["plain_seconds"] / (len(x) / size) * 1e3}


def loop() -> dict[str, float]:
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

    def steps() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            float(step(images, labels))
        return time.perf_counter() - began

    def watched() -> float:
        with legroom.watch(quiet=True):
            return steps()

    seen = take_turns(steps, watched)
    return {**seen, "plain_ms": seen["plain_seconds"] / STEPS * 1e3}


if __name__ == "__main__":
    np.random.seed(0)
    print(json.dumps(loop() if sys.argv[1] == "loop" else fits(sys.argv[1])))
