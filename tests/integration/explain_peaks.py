"""What a remedy is predicted to save and what it saves, by the allocator's own count of the peak.

A child process of test_explain_model.py, one for each peak: what a process did before moves the
peak of what it does next. With ``predict`` it prints the predictions of all remedies instead.

    python explain_peaks.py pictures|words|wide predict|plain|batch|input|average|optimizer
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

BATCH = 96


def pictures(side=96, head=layers.Flatten, units=64, filters=32):
    return keras.Sequential(
        [
            keras.Input((side, side, 3)),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            head(),
            layers.Dense(units, activation="relu"),
            layers.Dense(10),
        ]
    )


def wide(side=64, head=layers.Flatten):
    """Nearly all of it is the kernel of one dense layer."""
    return pictures(side, head, units=512, filters=16)


def words(steps=128):
    token = keras.Input((steps,), dtype="int32")
    x = layers.Embedding(2000, 128)(token)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y)
        x = x + layers.Dense(128)(layers.Dense(512, activation="gelu")(x))
    return keras.Model(token, layers.Dense(2000)(x))


def main(kind: str, how: str) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)  # an order that can be repeated
    make = {"pictures": pictures, "words": words, "wide": wide}[kind]
    batch = 8 if kind == "wide" else BATCH
    settings = {}
    if how == "input":
        settings = {"steps": 64} if kind == "words" else {"side": 48 if kind == "pictures" else 32}
    if how == "average":
        settings = {"head": layers.GlobalAveragePooling2D}
    model = make(**settings)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd" if how == "optimizer" else "adam", loss)
    if how == "predict":
        from legroom.planning.explain import KnownModel

        advice = KnownModel(model).advise(batch, None, "CPU:0")
        print(json.dumps({one.text: one.bytes_saved for one in advice.remedies}))
        return
    samples = batch // 2 if how == "batch" else batch
    kind_of_input = "int32" if kind == "words" else "float32"
    x = tf.constant(np.ones((samples, *model.input_shape[1:]), kind_of_input))
    y = tf.constant(np.zeros((samples, *model.output_shape[1:-1]), "int32"))
    for _ in range(3):
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.train_on_batch(x, y)
    print(tf.config.experimental.get_memory_info("CPU:0")["peak"])


main(*sys.argv[1:])
