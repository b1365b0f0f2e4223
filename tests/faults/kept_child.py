"""Trainings that are killed: one script, many models and inputs. `kept_child.py CASE OUT`.

Each model counts the samples it has seen in a variable of its own, so that a sample that was seen
twice, or not at all, is told apart. What the training came to is written to OUT.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAMPLES, FEATURES, EPOCHS, BATCH = 480, 8, 3, 16
PAUSE = float(os.environ.get("KEPT_PAUSE", "0.01"))


@keras.saving.register_keras_serializable()
class Seen(layers.Layer):
    """Counts samples by their number, which is the first feature."""

    def build(self, shape):
        self.counts = self.add_weight(
            shape=(SAMPLES,), initializer="zeros", trainable=False, name="counts"
        )

    def call(self, inputs, training=False):
        if training:
            numbers = keras.ops.cast(inputs[:, 0], "int32")
            self.counts.assign_add(
                keras.ops.sum(keras.ops.one_hot(numbers, SAMPLES, dtype="float32"), axis=0)
            )
        return keras.ops.cast(inputs[:, 1:], self.compute_dtype)


class Pause(keras.callbacks.Callback):
    """Time for the killer; and a callback that remembers something of its own."""

    def __init__(self):
        super().__init__()
        self.batches = 0
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.losses.append(float(logs["loss"]))
        time.sleep(PAUSE)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = x[:, 1:].sum(1, keepdims=True)
    x[:, 0] = np.arange(SAMPLES)
    return x, y


def dense(*extra, units=16):
    return keras.Sequential(
        [keras.Input((FEATURES,)), Seen(), layers.Dense(units, "relu"), *extra, layers.Dense(1)]
    )


def arrays():
    """Shuffled arrays, dropout, validation inside, callbacks that remember."""
    model = dense(layers.Dropout(0.3))
    model.compile("adam", "mse", metrics=["mae"])
    x, y = data()
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.CSVLogger(sys.argv[2] + ".csv"),
    ]
    return model, (x, y), {"batch_size": BATCH, "validation_data": (x[:64], y[:64]),
                           "callbacks": callbacks}  # fmt: skip


def unbuilt():
    """A model that is built by its first step, with a step and two optimizers of its own."""

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen, self.norm = Seen(), layers.BatchNormalization()
            self.first, self.second = layers.Dense(8, "relu"), layers.Dense(1)
            self.other = keras.optimizers.SGD(0.01, momentum=0.9)
            self.noise = tf.Variable(0.0, trainable=False)

        def call(self, inputs, training=False):
            return self.second(self.norm(self.first(self.seen(inputs, training=training)),
                                         training=training))  # fmt: skip

        def train_step(self, inputs):
            x, y = inputs
            with tf.GradientTape(persistent=True) as tape:
                loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            for layer, optimizer in ((self.first, self.optimizer), (self.second, self.other)):
                weights = layer.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.noise.assign_add(1.0)
            return {"loss": loss}

    model = Two()
    model.compile(keras.optimizers.Adam(0.01))
    return model, data(), {"batch_size": BATCH}


def pipeline():
    """tf.data with its own shuffling, and steps that run four batches at once."""
    model = dense(layers.BatchNormalization())
    model.compile(keras.optimizers.AdamW(use_ema=True), "mse", steps_per_execution=4)
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(100).batch(BATCH).prefetch(2)
    return model, (dataset,), {}


def filtered():
    """A pipeline whose length nobody knows."""
    model = dense(layers.Dropout(0.2))
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    dataset = tf.data.Dataset.from_tensor_slices(data()).filter(lambda x, y: tf.constant(True))
    return model, (dataset.shuffle(64, seed=5).batch(BATCH),), {}


def workers():
    """A `PyDataset` with threads of its own, validated by another one."""
    model = dense()
    model.compile("adam", "mse")
    plain = Plain(workers=2, max_queue_size=3)
    return model, (plain,), {"shuffle": True, "validation_data": Plain()}


def endless():
    """A pipeline without an end, in epochs that are no whole pass."""
    model = dense()
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse")
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(SAMPLES).repeat().batch(BATCH)
    return model, (dataset,), {"steps_per_epoch": SAMPLES // BATCH}


def ordered():
    """The same in the order of the data."""
    model, _, options = endless()
    dataset = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    return model, (dataset,), options


def streamed():
    """A stream over files, with a stage of one's own behind it."""
    import legroom

    # Beside the script, and its own: the same training runs in another process at the same time.
    folder = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(__file__)))
    files = tuple(os.path.join(folder, f"{name}.npy") for name in "xy")
    for file, array in zip(files, data(), strict=True):
        np.save(file, array)
    stream = legroom.stream(files, batch_size=BATCH, memory="64KiB", seed=3)
    model = dense(layers.Dropout(0.3))
    model.compile("adam", "mse", metrics=["mae"])
    return model, (stream.map(lambda x, y: (x, y * 2)).prefetch(2),), {}


class Shuffled(keras.utils.PyDataset):
    """Its own order, drawn anew after each epoch, and noise from NumPy's global numbers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = data()
        self.order = np.arange(SAMPLES)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = np.random.normal(size=(BATCH, 1)).astype("float32")
        return self.x[rows], self.y[rows] + noise * 0.1

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Plain(keras.utils.PyDataset):
    """Batches in their order."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = data()

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def sequence():
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


def eager():
    model = dense(layers.Dropout(0.2))
    model.compile("adam", "mse", run_eagerly=True)
    return model, data(), {"batch_size": BATCH}


def half():
    """Loss scaling: its own counters and scale."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = dense(units=8)
    model.compile(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()), "mse")
    return model, data(), {"batch_size": BATCH}


def compiled():
    model = dense(layers.Dropout(0.3))
    model.compile("adam", "mse", jit_compile=True)
    return model, data(), {"batch_size": BATCH}


def recurrent():
    """Two inputs by name, two outputs, weights for samples."""
    first = keras.Input((FEATURES,), name="first")
    second = keras.Input((5, 3), name="second")
    seen = Seen()(first)
    state = layers.LSTM(4, recurrent_dropout=0.2)(second)
    both = layers.Concatenate()([seen, state])
    model = keras.Model(
        {"first": first, "second": second},
        {"a": layers.Dense(1, name="a")(both), "b": layers.Dense(1, name="b")(both)},
    )
    model.compile("nadam", {"a": "mse", "b": "mae"}, metrics={"a": ["mae"]})
    x, y = data()
    series = np.random.default_rng(1).normal(size=(SAMPLES, 5, 3)).astype("float32")
    weights = np.linspace(0.5, 1.5, SAMPLES).astype("float32")
    return model, ({"first": x, "second": series}, {"a": y, "b": y * 2}), {
        "batch_size": BATCH, "sample_weight": {"a": weights, "b": weights}}  # fmt: skip


def loop(out):
    """A loop written by hand, that says what it changes."""
    import legroom

    keras.utils.set_random_seed(7)
    model = dense(layers.Dropout(0.3))
    optimizer = keras.optimizers.Adam(0.01)
    mean = keras.metrics.Mean()
    log = {"losses": [], "batches": 0}
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(100).batch(BATCH)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        mean.update_state(loss)
        return loss

    state = {"model": model, "optimizer": optimizer, "mean": mean, "log": log}
    for _ in range(EPOCHS):
        for x, y in legroom.resumable(dataset, state=state):
            log["losses"].append(float(step(x, y)))
            log["batches"] += 1
            time.sleep(PAUSE)
    counts = next(v for v in model.variables if v.path.endswith("counts")).numpy()
    variables = [np.asarray(v.numpy()) for v in (*model.variables, *optimizer.variables)]
    np.savez(out, *variables, np.asarray(log["losses"]), np.asarray(log["batches"]),
             np.asarray(mean.result()), counts=counts)  # fmt: skip
    print("finished loop", len(log["losses"]))


def main():
    case, out = sys.argv[1:3]
    if case == "loop":
        loop(out)
        return
    seeded = case != "unseeded"
    if seeded:
        keras.utils.set_random_seed(7)
    model, inputs, options = (arrays if case == "unseeded" else globals()[case])()
    pause = Pause()
    options.setdefault("callbacks", [])
    options["callbacks"] = [pause, *options["callbacks"]]
    first = model.fit(*inputs, epochs=EPOCHS, verbose=0, **options)
    first_weights = [np.asarray(w) for w in model.get_weights()]
    later = {k: v for k, v in options.items() if k not in ("callbacks", "validation_data")}
    if case != "generator":  # it is used up, as far as Keras has looked ahead
        second = model.fit(*inputs, epochs=1, verbose=0, callbacks=[pause], **later)
    else:
        second = first
    counts = next(v for v in model.variables if v.path.endswith("counts")).numpy()
    draws = np.random.random(3), np.float64(keras.random.uniform((), seed=None))
    if case == "generator":  # a thread of Keras that reads ahead may be drawing at this moment
        draws = (np.zeros(3), draws[1])
    np.savez(
        out,
        *first_weights,
        *model.get_weights(),
        *[np.asarray(v.numpy()) for v in model.optimizer.variables],
        *[np.asarray(values) for history in (first, second) for values in history.history.values()],
        np.asarray(first.epoch),
        np.asarray(pause.losses),
        np.asarray(pause.batches),
        draws[0],
        draws[1],
        counts=counts,
    )
    print("finished", case, len(pause.losses))


if __name__ == "__main__":
    main()
