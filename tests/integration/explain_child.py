"""A real failure under a real cap, explained with the live model; and models saved for the CLI.

A child process of test_explain_model.py. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys

import legroom

legroom.limit(300 * 2**20)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

FOLDER = sys.argv[1]


class Scaled(layers.Layer):
    """A layer of the user's own, which nobody registered."""

    def call(self, x):
        return x * 2.0


def in_use():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


keras.utils.set_random_seed(1)
images = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        layers.Conv2D(32, 3, activation="relu", name="first"),
        layers.Conv2D(64, 3, activation="relu", name="second"),
        layers.MaxPooling2D(),
        layers.Flatten(name="flat"),
        layers.Dense(32, activation="relu", name="wide"),
        layers.Dense(10, name="out"),
    ],
    name="pictures",
)
images.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
images.save(f"{FOLDER}/images.keras")

token = keras.Input((128,), dtype="int32")
x = layers.Embedding(1000, 64, name="words")(token)
x = x + layers.MultiHeadAttention(4, 16, name="attention")(x, x)
words = keras.Model(token, layers.Dense(1000, name="logits")(x), name="words_model")
words.compile("sgd", "mse")
words.save(f"{FOLDER}/words.keras")

keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x + 1)]).save(f"{FOLDER}/lambda.keras")
keras.Sequential([keras.Input((4,)), Scaled()]).save(f"{FOLDER}/own.keras")

answers = {}
x, y = np.zeros((256, 64, 64, 3), "float32"), np.zeros(256, "int32")
try:
    images.fit(x, y, batch_size=256, verbose=0)
except tf.errors.ResourceExhaustedError as error:
    before = in_use()
    found = legroom.explain(error, model=images)
    answers["fit"] = found.to_dict()
    answers["allocated"] = in_use() - before
    answers["shown"] = found._repr_html_()

# A model that only its own code knows, and one that was never built.
functional = keras.Sequential([keras.Input((512,)), Scaled(name="own"), layers.Dense(256)])
text = (
    "OOM when allocating tensor with shape[2048,256] and type float on /device:CPU:0 by allocator "
    "cpu"
)
answers["own"] = legroom.explain(text, model=functional).to_dict()
answers["unbuilt"] = legroom.explain(text, model=keras.Sequential([layers.Dense(4)])).to_dict()

# The models still train, and nothing of ours is waiting to be made.
images.train_on_batch(x[:2], y[:2])
answers["after"] = in_use()
print(json.dumps(answers))
