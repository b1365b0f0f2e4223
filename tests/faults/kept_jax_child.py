"""Trainings by Keras on JAX that are killed: `kept_jax_child.py CASE+CASE+… OUT`.

One script trains several small models, one after the other, with a different input each. What each
training came to, and how often it has seen each sample, is written to OUT.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

SAMPLES, FEATURES, EPOCHS, BATCH = 240, 8, 3, 16
PAUSE = float(os.environ.get("KEPT_PAUSE", "0.01"))


class Seen(layers.Layer):
    """Counts samples by their number, which is the first feature."""

    def build(self, shape):
        self.counts = self.add_weight(
            shape=(SAMPLES,), initializer="zeros", trainable=False, name="counts"
        )

    def call(self, inputs, training=False):
        if training:
            numbers = keras.ops.cast(inputs[:, 0], "int32")
            seen = keras.ops.one_hot(numbers, SAMPLES, dtype="float32")
            self.counts.assign_add(keras.ops.sum(seen, axis=0))
        return keras.ops.cast(inputs[:, 1:], self.compute_dtype)


class Pause(keras.callbacks.Callback):
    """Time for the killer; and a callback that remembers something of its own."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        time.sleep(PAUSE)


class Shuffled(keras.utils.PyDataset):
    """Its own order, drawn after each epoch, and noise by two ways."""

    def __init__(self):
        super().__init__()
        self.x, self.y = data()
        self.order = np.arange(SAMPLES)
        self.own = np.random.default_rng(3)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = np.random.normal(size=(BATCH, 1)) + self.own.normal(size=(BATCH, 1))
        return self.x[rows], self.y[rows] + noise.astype("float32") * 0.1

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = x[:, 1:].sum(1, keepdims=True)
    x[:, 0] = np.arange(SAMPLES)
    return x, y


def dense(*extra):
    return keras.Sequential(
        [keras.Input((FEATURES,)), Seen(), layers.Dense(12, "relu"), *extra, layers.Dropout(0.3),
         layers.Dense(1)]
    )  # fmt: skip


def arrays():
    """Shuffled arrays, a validation set, callbacks that remember."""
    model = dense(layers.BatchNormalization())
    model.compile("adam", "mse", metrics=["mae"])
    x, y = data()
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]
    return model, (x, y), {"batch_size": BATCH, "validation_data": (x[:64], y[:64]),
                           "callbacks": callbacks}  # fmt: skip


def unbuilt():
    """A model that is built by its first step, with a step of its own."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen, self.norm = Seen(), layers.BatchNormalization()
            self.first, self.second = layers.Dense(8, "relu"), layers.Dense(1)

        def call(self, inputs, training=False):
            hidden = self.first(self.seen(inputs, training=training))
            return self.second(self.norm(hidden, training=training))

        def train_step(self, state, batch):
            logs, state = super().train_step(state, batch)
            return {**logs, "twice": 2 * logs["loss"]}, state

    model = Own()
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    return model, data(), {"batch_size": BATCH}


def sequence():
    """A `PyDataset`, and a layer that draws noise."""
    model = dense(layers.GaussianNoise(0.1))
    model.compile("rmsprop", "mse", metrics=["mae"])
    return model, (Shuffled(),), {"shuffle": True}


def generator():
    """A Python generator that draws from the global random numbers."""
    model = dense()
    model.compile("adam", "mse")

    def batches():
        x, y = data()
        while True:
            order = np.random.permutation(SAMPLES)
            for start in range(0, SAMPLES, BATCH):
                rows = order[start : start + BATCH]
                yield x[rows], y[rows]

    return model, (batches(),), {"steps_per_epoch": SAMPLES // BATCH}


def pipeline():
    """tf.data, in steps that run three batches at once."""
    import tensorflow as tf

    model = dense()
    model.compile("adam", "mse", steps_per_execution=3)
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(100, seed=4).batch(BATCH)
    return model, (dataset.prefetch(2),), {}


def unseeded_pipeline():
    """tf.data with a shuffle that nobody seeded."""
    import tensorflow as tf

    model = dense()
    model.compile("adam", "mse")
    return model, (tf.data.Dataset.from_tensor_slices(data()).shuffle(100).batch(BATCH),), {}


def fitted(case):
    """Train a model, twice."""
    if os.environ.get("KEPT_SEEDED", "1") == "1":
        keras.utils.set_random_seed(7)
    model, inputs, options = globals()[case]()
    pause = Pause()
    options["callbacks"] = [pause, *options.get("callbacks", [])]
    first = model.fit(*inputs, epochs=EPOCHS - 1, verbose=0, **options)
    weights = [np.array(w) for w in model.get_weights()]
    later = {k: v for k, v in options.items() if k not in ("callbacks", "validation_data")}
    if case == "generator":  # Keras has looked ahead in it, and the next `fit` has not
        inputs = generator()[1]
    second = model.fit(*inputs, epochs=1, verbose=0, callbacks=[pause], **later)
    counts = next(v for v in model.variables if v.path.endswith("counts")).value
    logs = [v for history in (first, second) for v in history.history.values()]
    return counts, [*weights, *model.get_weights(), *[v.value for v in model.optimizer.variables],
                    *logs, pause.losses, np.random.random(3),
                    keras.random.uniform((), seed=None)]  # fmt: skip


def main():
    cases, out = sys.argv[1:]
    results = {}
    for case in cases.split("+"):
        counts, values = fitted(case)
        results[f"{case} counts"] = np.array(counts)
        results |= {f"{case} {number}": np.array(value) for number, value in enumerate(values)}
    np.savez(out, **results)
    print("finished", cases)


if __name__ == "__main__":
    main()
