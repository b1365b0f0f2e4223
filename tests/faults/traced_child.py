"""Memory is gone while a step is traced, and is there again later. Prints what came of it."""

from __future__ import annotations

import json
import time
from typing import Any

import legroom

LIMIT = 64 * 2**20
legroom.limit(LIMIT)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.utils.set_random_seed(1)
taken: list[Any] = []
errors: list[str] = []


def take_all() -> None:
    """Down to pieces of 256 bytes, the smallest there are; none of them is asked for in vain."""
    for piece in (2**20, 2**16, 2**12, 2**8):
        while tf.config.experimental.get_memory_info("CPU:0")["current"] + 2 * piece < LIMIT:
            try:
                taken.append(tf.raw_ops.Empty(shape=[piece], dtype=tf.uint8))
            except tf.errors.ResourceExhaustedError:
                break  # what is left lies in smaller pieces


class Starved(keras.Sequential):
    starving = True

    def train_step(self, data: Any) -> Any:
        with tf.init_scope():
            if self.starving and not taken:
                take_all()
        try:
            return super().train_step(data)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            raise


model = Starved([keras.Input((30, 30, 3)), keras.layers.Dense(16), keras.layers.Dense(5)])
model.compile("sgd", "mse")
model.optimizer.build(model.trainable_variables)
before = [value.numpy() for value in model.variables]
x, y = tf.ones((1, 30, 30, 3)), tf.ones((1, 30, 30, 5))
began, refused = time.monotonic(), ""
try:
    legroom.fit(model, tf.data.Dataset.from_tensors((x, y)), verbose=0)
except legroom.CannotFitError as error:
    refused = str(error)
seconds = time.monotonic() - began
Starved.starving = False
taken.clear()
off = max(
    float(np.abs(value - variable.numpy()).max())
    for value, variable in zip(before, model.variables, strict=True)
)
legroom.fit(model, tf.data.Dataset.from_tensors((x, y)), verbose=0)
print(
    json.dumps(
        {"refused": refused, "off": off, "steps": int(model.optimizer.iterations),
         "errors": errors, "seconds": seconds}
    )
)  # fmt: skip
