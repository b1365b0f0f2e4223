"""What `legroom.check(model)` predicts for each change, over what the changed model really takes.

`diet.py` compares all models; `diet.py measure` is the child process that trains one, which it
reads from its input: the peak that TensorFlow's allocator counted in the steady steps of `fit`. It
is a fresh one, because free chunks of another model would be used for this one's tensors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import legroom

# The order of ops is chance with more; what that does to estimates is accuracy.py's subject.
tf.config.threading.set_inter_op_parallelism_threads(1)
BATCH = 32


def flattened() -> keras.Model:
    """A small CNN whose weights are nearly all behind its Flatten."""
    model = keras.Sequential([
        keras.Input((96, 96, 3)), layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(4), layers.Flatten(),
        layers.Dense(512, activation="relu"), layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def embedded() -> keras.Model:
    """A classifier of texts with a wide embedding."""
    words = keras.Input((100,), dtype="int32")
    x = layers.Embedding(50_000, 256)(words)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(512, activation="relu")(x)
    model = keras.Model(words, layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


def convolutional() -> keras.Model:
    """A deeper CNN with many channels and few places."""
    x = inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    for filters in (256, 512, 512):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(layers.Flatten()(x)))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def deep() -> keras.Model:
    """Many layers of the same size: nearly all of it is kept for the gradients."""
    x = inputs = keras.Input((64, 64, 3))
    for _ in range(10):
        x = layers.Conv2D(32, 3, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


MODELS = {"flattened": flattened, "embedded": embedded, "convolutional": convolutional,
          "deep": deep}  # fmt: skip


class Peaks(keras.callbacks.Callback):
    """The peak of the steps after the second."""

    steady = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Read, and start anew where the steady steps begin."""
        self.steady = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        if batch < 2:
            tf.config.experimental.reset_memory_stats("CPU:0")


def measured(described: dict[str, Any]) -> int:
    """Train a model for some steps."""
    from legroom.backends.tensorflow.recompute import eight_bits  # noqa: F401  # a layer of its own

    made = keras.models.model_from_json(described["model"])
    made.compile_from_config(described["compiled"])
    shape = made.input_shape[1:]
    x: Any = np.random.default_rng(0).random((BATCH, *shape)).astype("float32")
    if made.inputs[0].dtype == "int32":
        x = np.random.default_rng(0).integers(0, 50_000, (BATCH, *shape)).astype("int32")
    y = np.random.default_rng(1).integers(0, 2, (BATCH, 1))
    y = y.astype("float32") if made.output_shape[-1] == 1 else y[:, 0]

    def opened(*parts: Any) -> Any:
        """The same batch with its size left open, as most sources of data leave it."""
        return tuple(
            tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]]) for part in parts
        )

    data = tf.data.Dataset.from_tensors((tf.constant(x), tf.constant(y))).map(opened).repeat()
    peaks = Peaks()
    made.fit(data, steps_per_epoch=8, verbose=0, callbacks=[peaks])
    return peaks.steady


def compared(name: str) -> list[dict[str, Any]]:
    """Each change that is proposed for a model, with both peaks."""
    rows = []
    model = MODELS[name]()
    for found in legroom.check(model, batch_size=BATCH):
        change = "none" if found.id == "LR300" else found.data["change"]
        if found.id == "LR309":
            continue  # weighed, not predicted
        made = model if change == "none" else legroom.slim(model, change=change)
        described = {"model": made.to_json(), "compiled": made.get_compile_config()}
        done = subprocess.run(
            [sys.executable, __file__, "measure"], input=json.dumps(described),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        peak = json.loads(done.stdout.splitlines()[-1])
        predicted = found.data["peak_before" if change == "none" else "peak_after"]
        rows.append({"model": name, "change": change, "predicted": predicted, "measured": peak,
                     "ratio": predicted / peak})  # fmt: skip
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measured(json.load(sys.stdin))))
    else:
        chosen = sys.argv[1:] or list(MODELS)
        print(json.dumps({"rows": [row for name in chosen for row in compared(name)]}))
