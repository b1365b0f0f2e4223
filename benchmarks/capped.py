"""One training under a cap, in slices of one size or as legroom chooses: time per epoch and peak.

A child process of run.py, because a cap is set once for a process.
"""

from __future__ import annotations

import argparse
import json

import legroom

parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=int, required=True, help="the cap in bytes")
parser.add_argument("--slice-size", type=int, help="fixed by hand; 0 for plain fit")
parser.add_argument("--epochs", type=int, default=4)
options = parser.parse_args()
legroom.limit(options.limit)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from clock import Clock  # noqa: E402
from net import convolutional_net  # noqa: E402

BATCH = 64
SAMPLES = 256


keras.utils.set_random_seed(0)
model = convolutional_net(96)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
rng = np.random.default_rng(0)
x = rng.random((SAMPLES, 96, 96, 3), np.float32)
y = rng.integers(0, 10, SAMPLES)
data = tf.data.Dataset.from_generator(
    lambda: zip(x, y, strict=True),
    output_signature=(tf.TensorSpec((96, 96, 3)), tf.TensorSpec((), tf.int64)),
).batch(BATCH)
clock = Clock()
try:
    if options.slice_size == 0:
        history = model.fit(data, epochs=options.epochs, verbose=0, callbacks=[clock])
        report = None
    else:
        history = legroom.fit(
            model, data, epochs=options.epochs, verbose=0, callbacks=[clock],
            slice_size=options.slice_size,
        )  # fmt: skip
        report = history.legroom
except (legroom.CannotFitError, tf.errors.ResourceExhaustedError):
    print(json.dumps({"fits": False}))
    raise SystemExit from None
print(
    json.dumps(
        {
            "fits": True,
            "first_epoch": clock.seconds[0],
            "epoch": min(clock.seconds[1:]),
            "epochs": clock.seconds,
            "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"],
            "ooms": 0 if report is None else report.ooms,
            "oom_seconds": 0.0 if report is None else report.oom_seconds,
            "slice_size": None if report is None else report.slice_size,
        }
    )
)
