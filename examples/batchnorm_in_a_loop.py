"""A deep CNN with BatchNorm, trained in a loop of fits.

One fit for each epoch, with what people do between two of them to free memory: collect garbage,
save a checkpoint. It does not help, because nothing has leaked: the batch alone is too large, and
the loop ends with a ResourceExhaustedError in its first round.
"""

import gc
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

IMAGE = (128, 128, 3)
BATCH_SIZE = 192
ROUNDS = 3

tf.keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)
y_train = rng.integers(0, 4, BATCH_SIZE)
x_train = rng.normal(y_train[:, None, None, None] / 4, 1, (len(y_train), *IMAGE)).astype("float32")


def block(filters):
    return [
        tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.ReLU(),
        tf.keras.layers.MaxPooling2D(),
    ]


model = tf.keras.Sequential(
    [
        tf.keras.Input(IMAGE),
        *block(16),
        *block(32),
        *block(64),
        *block(128),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(4, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

with tempfile.TemporaryDirectory() as folder:
    for round_ in range(ROUNDS):
        history = model.fit(x_train, y_train, batch_size=BATCH_SIZE, epochs=1, verbose=0)
        loss = history.history["loss"][0]
        print(f"round {round_ + 1}: loss {loss:.4f}")
        model.save_weights(Path(folder) / f"round_{round_}.weights.h5")
        gc.collect()

print(f"final loss: {loss:.4f}")
