"""Guarded trainings under a real cap, several in one process, because starting costs more.

A child process of test_capped.py. Prints one JSON line for each check.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import legroom

LIMIT = 300 * 2**20
legroom.limit(LIMIT)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

from legroom.backends.keras.recompute_blocks import block_order, recompute_blocks  # noqa: E402
from legroom.backends.tensorflow.device.survivable import survivable  # noqa: E402

RNG = np.random.default_rng(0)


def images(count, side=64):
    """Images and labels."""
    return RNG.random((count, side, side, 3), np.float32), RNG.integers(0, 10, count)


def convolutional(side=64, filters=32, batch_norm=False):
    """A convolutional net whose batch of 64 is too large for the cap."""
    keras.utils.set_random_seed(1)
    norm = [layers.BatchNormalization(name="the_norm")] if batch_norm else []
    model = keras.Sequential(
        [
            keras.Input((side, side, 3)),
            layers.Conv2D(filters, 3, activation="relu", name="first_conv"),
            *norm,
            layers.Conv2D(filters, 3, activation="relu", name="second_conv"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def same(one, other):
    """Whether two lists of weights are the same, bit for bit."""
    return all(map(np.array_equal, one, other))


def survives():
    """A batch that is too large is trained in slices."""
    model = convolutional()
    x, y = images(160)
    history = legroom.fit(model, x, y, batch_size=80, epochs=2, verbose=0)
    report = history.legroom
    legroom.guard(model)
    numbers = model.evaluate(x, y, batch_size=160, verbose=0)
    outputs = model.predict(x, batch_size=160, verbose=0)
    return {
        "ooms": report.ooms, "slice_size": report.slice_size, "batch_size": report.batch_size,
        "peak": report.peak_bytes, "budget": report.budget_bytes, "lost": report.samples_lost,
        "seen": report.samples_seen, "predicted": list(outputs.shape), "loss": numbers[0],
        "json": json.loads(report.to_json())["kind"],
    }  # fmt: skip


def one_sample_is_too_much():
    """At one sample and still too much."""
    model = convolutional(side=700, filters=96)
    x, y = images(2, 700)
    before = model.get_weights()
    try:
        legroom.fit(model, x, y, batch_size=2, verbose=0)
    except legroom.CannotFitError as error:
        return {
            "text": str(error), "needed": error.needed_bytes, "budget": error.budget_bytes,
            "untouched": same(before, model.get_weights()),
            "iterations": int(model.optimizer.iterations),
        }  # fmt: skip
    return {"text": None}


def batch_norm(exact):
    """BatchNorm in slices is said once; exact=True does not slice."""
    model = convolutional(batch_norm=True)
    x, y = images(160)
    before = model.get_weights()
    try:
        size = 160 if exact else 80  # 80 may fit once blocks are recomputed
        history = legroom.fit(model, x, y, batch_size=size, epochs=2, verbose=0, exact=exact)
    except legroom.CannotFitError as error:
        return {"text": str(error), "untouched": same(before, model.get_weights())}
    events = history.legroom.events
    notes = [event.text for event in events if event.name == "note"]
    sizes = [event.data["slice_size"] for event in events if event.name == "plan"]
    return {"notes": notes, "sizes": sizes}


def too_large_to_compare():
    """Frozen layers keep nothing in a graph; run op by op, as slices are compared, they do."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((256, 256, 3))
    for _ in range(40):
        x = layers.Conv2D(16, 3, padding="same", activation="relu", trainable=False)(x)
    model = keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = images(32, 256)
    history = legroom.fit(model, x, y, batch_size=32, epochs=1, verbose=0)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    return {"ooms": history.legroom.ooms, "size": history.legroom.slice_size, "notes": notes}


def deep_exact():
    """A deep net with BatchNorm fits whole, and exactly, once it recomputes."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((32, 32, 3))
    for _ in range(8):
        x = layers.Conv2D(32, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy")
    data, labels = images(160, side=32)
    history = legroom.fit(model, data, labels, batch_size=160, epochs=2, verbose=0, exact=True)
    report = history.legroom
    return {
        "slice_size": report.slice_size,
        "ooms": report.ooms,
        "plans": [event.text for event in report.events if event.name == "plan"],
    }


def grows_again():
    """When memory is given back, slices grow."""
    model = convolutional()
    x, y = images(48)
    held = [tf.zeros([2**20 // 4]) for _ in range(190)]

    class GivesBack(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                held.clear()
                gc.collect()

    history = legroom.fit(model, x, y, batch_size=48, epochs=8, verbose=0, callbacks=[GivesBack()])
    sizes = [e.data["slice_size"] for e in history.legroom.events if e.name == "plan"]
    return {"sizes": sizes, "ooms": history.legroom.ooms}


class Contrastive(keras.losses.Loss):
    """Compares each sample with all others of its batch."""

    def call(self, y_true, y_pred):
        logits = tf.matmul(y_pred, y_pred, transpose_b=True)
        labels = tf.eye(tf.shape(logits)[0])
        return tf.nn.softmax_cross_entropy_with_logits(labels, logits)


def coupling_loss():
    """A loss that couples samples is noticed, by name."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    model.compile("sgd", Contrastive(name="my_contrastive"))
    x = RNG.random((32, 8), np.float32)
    history = legroom.fit(model, x, x[:, :1], batch_size=16, slice_size=4, verbose=0)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    return {"notes": notes}


def user_errors():
    """What the user's own code raises comes through as it is."""

    class Mine(Exception):
        pass

    class Raises(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise Mine("from the callback")

    model = convolutional(side=16)
    x, y = images(8, 16)
    seen = []
    for fitting in (
        lambda: legroom.fit(model, x, y, verbose=0, callbacks=[Raises()]),
        lambda: legroom.fit(model, x, y[:5], verbose=0),
        lambda: legroom.fit(keras.Sequential([layers.Dense(1)]), x, y, verbose=0),
        lambda: legroom.fit(model, x, y, verbose=0, slice_size=0),
        lambda: legroom.fit(model, x, y, verbose=0, memory="lots"),
        lambda: legroom.fit("a model", x, y),
        lambda: legroom.limit("100MiB"),
    ):
        try:
            fitting()
            seen.append(None)
        except Exception as error:
            seen.append([type(error).__name__, str(error)[:300]])
    return {"seen": seen}


def survives_often():
    """Survived failures leave no growth: memory runs out in the middle of each training."""
    model = convolutional()
    x, y = images(72)
    held = []

    class TakesMemory(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                while LIMIT - in_use() > 46 * 2**20:
                    held.append(tf.zeros([2**20 // 4]))

    levels, ooms = [], 0
    for turn in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
        legroom.guard(model)  # a new guard, which has not learnt yet
        history = model.fit(x, y, batch_size=24, verbose=0, callbacks=[TakesMemory()])
        held.clear()
        model.train_function = None
        gc.collect()
        levels.append(in_use())
        ooms += history.legroom.ooms
        print(json.dumps({"turn": turn, "ooms": history.legroom.ooms}), file=sys.stderr)
    return {"levels": levels, "ooms": ooms}


def many_tokens():
    """An embedding whose gradient has more rows in a batch than its table: slices must help."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((200,), dtype="int32"),
            keras.layers.Embedding(2000, 64),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2000, (4096, 200)), rng.random((4096, 1), np.float32)
    before = in_use()
    tf.config.experimental.reset_memory_stats("CPU:0")
    legroom.fit(model, x, y, batch_size=4096, slice_size=512, verbose=0)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    # Its rows, all at once: a float for each token and unit.
    return {"peak": peak, "rows": 4096 * 200 * 64 * 4}


def recomputed():
    """What a step needs, plain and with blocks recomputed."""
    needs = {}
    for length in (0, 4):
        keras.utils.set_random_seed(0)
        inputs = x = keras.Input((256,))
        for _ in range(12):
            x = keras.layers.Dense(256, activation="gelu")(x)
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile("sgd", "mse")
        if length:
            chain = block_order(model)[0]
            recompute_blocks(model, [chain[i : i + length] for i in range(0, 12, length)])
        data = tf.zeros((4096, 256)), tf.zeros((4096, 1))
        model.train_on_batch(*data)
        before = in_use()
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.train_on_batch(*data)
        needs[length] = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    return {"plain": needs[0], "recomputed": needs[4]}


def sums_many_terms():
    """A function that runs out between making a sum's temporary variable and destroying it."""

    @tf.function
    def total(x, floats):
        terms = [tf.sin(x * float(i)) for i in range(1, 5)]
        with tf.control_dependencies(terms):
            late = tf.reduce_sum(tf.sqrt(tf.fill([floats], terms[0][0])))
        return tf.reduce_sum(tf.add_n([*terms, x * late]))

    x = tf.ones(2**23)
    seen = []
    for floats in (9, 90 * 2**20, 9):
        try:
            with survivable():
                seen.append(float(total(x, tf.constant(floats))))
        except tf.errors.ResourceExhaustedError:
            seen.append(None)
    return {"seen": seen}


def in_use():
    """Bytes in use on the device."""
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


CHECKS = {
    "survives": survives,
    "one_sample_is_too_much": one_sample_is_too_much,
    "batch_norm": lambda: batch_norm(False),
    "batch_norm_exact": lambda: batch_norm(True),
    "deep_exact": deep_exact,
    "grows_again": grows_again,
    "coupling_loss": coupling_loss,
    "user_errors": user_errors,
    "survives_often": survives_often,
    "many_tokens": many_tokens,
    "recomputed": recomputed,
    "sums_many_terms": sums_many_terms,
    "too_large_to_compare": too_large_to_compare,
}

if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        began = time.monotonic()
        result = CHECKS[name]()
        keras.utils.clear_session()
        gc.collect()
        print(
            json.dumps({"check": name, "seconds": time.monotonic() - began, **result}), flush=True
        )
