"""A training loop that keeps every batch of predictions, as tensors, for a mean at the end."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = tf.constant(rng.random((512, 400), dtype="float32"))
y = tf.constant(rng.random((512, 400), dtype="float32"))
model = keras.Sequential([keras.Input((400,)), keras.layers.Dense(400)])
optimizer = keras.optimizers.SGD(0.01)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        loss = tf.reduce_mean((outputs - y) ** 2)
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    return outputs


def train(steps):
    predictions = []
    for _ in range(steps):
        predictions.append(step(x, y))
    return tf.reduce_mean(tf.stack([tf.reduce_mean(p) for p in predictions]))


print(f"mean prediction: {float(train(24)):.4f}")
