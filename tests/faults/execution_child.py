"""Train with several steps in an execution, one of which runs out of memory for real.

A child process of test_execution_oom.py: a cap is set once. The batch at that place is as many
samples as all others, of sequences so long that it does not fit whole: the guard has seen no such
batch. Prints one JSON line for each place.
"""

from __future__ import annotations

import json
import sys

import legroom

LIMIT = 300 * 2**20
legroom.limit(LIMIT)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

from legroom.backends.tensorflow.step import executions, step_loop  # noqa: E402

STEPS, BATCHES, SAMPLES = 8, 27, 16
executions._SLOW = float("inf")


def batches(long_at, length):
    """Batches of short sequences, and one of long ones."""
    rng = np.random.default_rng(1)

    def make():
        for number in range(BATCHES):
            x = rng.normal(size=(SAMPLES, length if number == long_at else 5, 8))
            yield x.astype("float32"), x.mean((1, 2))[:, None].astype("float32")

    spec = (tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(make, output_signature=spec)


def built():
    """A model whose activations grow with the length."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((None, 8)),
            layers.Dense(128, "tanh"),
            layers.Dense(128, "tanh"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9))
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=STEPS)
    return model


class Ends(keras.callbacks.Callback):
    """The batches at whose ends it is called, and the logs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([batch, *(float(value) for value in logs.values())])


def one_by_one(model, data):
    """The same training, in slices that fit: with nothing to fail, and no loop."""
    ends = Ends()
    history = legroom.fit(model, data, verbose=0, callbacks=[ends], slice_size=4)
    return history, ends.seen


def trial(long_at):
    """One training that runs out of memory at a batch, and one that does not."""
    failed = []
    original = step_loop.StepLoop.__call__

    def call(self, *args):
        ran = original(self, *args)
        if ran.error is not None:
            failed.append(ran.steps)
        return ran

    length = 16000
    calm = built()
    history, ends = one_by_one(calm, batches(long_at, length))
    model, seen = built(), Ends()
    step_loop.StepLoop.__call__ = call
    other = legroom.fit(model, batches(long_at, length), verbose=0, callbacks=[seen])
    step_loop.StepLoop.__call__ = original
    pairs = zip(
        [*calm.variables, *calm.optimizer.variables],
        [*model.variables, *model.optimizer.variables],
        strict=True,
    )
    off = max(float(np.max(np.abs(a.numpy() - b.numpy()), initial=0)) for a, b in pairs)
    told = {
        "at": long_at,
        "failed": failed,
        "iterations": int(model.optimizer.iterations),
        "off": off,
        "same_ends": bool(np.allclose(ends, seen.seen, rtol=1e-3, atol=1e-6)),
        "loss": [history.history["loss"][0], other.history["loss"][0]],
    }
    print(json.dumps(told), flush=True)


for place in sys.argv[1:]:
    trial(int(place))
