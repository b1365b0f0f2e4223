"""A large embedding and an LSTM.

Sequences look small, 128 numbers each, but the embedding makes 64 floats out of every one of
them, and the LSTM keeps its gates and states of all 128 steps for the way back. A batch of 3072
sequences is more than the memory holds, and the fit ends with a ResourceExhaustedError.
"""

import numpy as np
import tensorflow as tf

VOCABULARY = 20_000
LENGTH = 128
BATCH_SIZE = 3072

tf.keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
labels = rng.integers(0, 2, BATCH_SIZE)
# Positive texts use the first half of the vocabulary more often.
words = rng.integers(0, VOCABULARY, (len(labels), LENGTH))
words = np.where((labels[:, None] == 1) & (rng.random(words.shape) < 0.3), words // 2, words)

dataset = tf.data.Dataset.from_tensor_slices((words, labels)).batch(BATCH_SIZE)

model = tf.keras.Sequential(
    [
        tf.keras.Input((LENGTH,), dtype="int32"),
        tf.keras.layers.Embedding(VOCABULARY, 64),
        tf.keras.layers.LSTM(128),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])

history = model.fit(dataset, epochs=2)
print(f"final loss: {history.history['loss'][-1]:.4f}")
