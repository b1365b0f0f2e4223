"""Sentences of every length through a tf.function, which is traced anew for each of them."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
model = keras.Sequential([keras.layers.Embedding(1000, 64), keras.layers.LSTM(64)])
model(np.zeros((1, 4), "int32"))


@tf.function
def encode(words):
    return tf.reduce_mean(model(words))


total = 0.0
for length in range(5, 25):
    sentence = tf.constant(rng.integers(0, 1000, (1, length)))
    total += float(encode(sentence))

print(f"sum of means: {total:.4f}")
