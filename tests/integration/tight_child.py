"""A training of a model that is heavy for its batch, plain or under legroom, in a pool of a size.

A child process of test_tight.py: a cap is set once for a process. Writes the weights, and prints
one JSON line.
"""

from __future__ import annotations

import json
import sys

import legroom

name, optimizer, way, limit, path = sys.argv[1:]
legroom.limit(int(limit))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adamw": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.01, global_clipnorm=1.0),
}
STEPS = 6


def build() -> tuple[keras.Model, np.ndarray]:
    """The model and one batch for it."""
    rng = np.random.default_rng(0)
    if name == "table":
        model = keras.Sequential(
            [
                keras.Input((20,), dtype="int32"),
                layers.Embedding(60_000, 64),
                layers.GlobalAveragePooling1D(),
                layers.Dense(10),
            ]
        )
        return model, rng.integers(0, 60_000, (16, 20), np.int32)
    width, count = {"few": (1500, 4), "many": (900, 12)}[name]
    model = keras.Sequential(
        [
            keras.Input((width,)),
            *[layers.Dense(width, activation="relu") for _ in range(count)],
            layers.Dense(10),
        ]
    )
    return model, rng.random((8, width), np.float32)


keras.utils.set_random_seed(1)
model, x = build()
y = np.arange(len(x)) % 10
model.compile(
    OPTIMIZERS[optimizer](),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    run_eagerly=way.endswith("eager"),
)
data = tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)
said: dict[str, object] = {}
if way.startswith("plain"):
    model.fit(data, verbose=0)
else:
    report = legroom.fit(model, data, verbose=0).legroom
    said = {
        "slice_size": report.slice_size,
        "ooms": report.ooms,
        "texts": [event.text for event in report.events if event.text],
    }
peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
np.savez(path, *model.get_weights())
print(json.dumps({"peak": peak, **said}))
