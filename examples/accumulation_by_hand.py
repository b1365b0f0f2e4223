"""Gradient accumulation written by hand.

One update for a batch of 192, made of two slices of 96 whose gradients are added up: the usual cure
for a batch that is too large. It is written right (the sum over all samples is divided by their
number, whatever the last slice holds), but the size of a slice was a guess, and a slice that is
still too large ends with a ResourceExhaustedError as well.
"""

import numpy as np
import tensorflow as tf

IMAGE = (128, 128, 3)
BATCH_SIZE = 192
SLICE = 96

tf.keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
targets = rng.random((BATCH_SIZE, 1), dtype="float32")
images = rng.random((BATCH_SIZE, *IMAGE), dtype="float32") * targets[:, :, None, None]

model = tf.keras.Sequential(
    [
        tf.keras.Input(IMAGE),
        tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(4),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(1),
    ]
)
optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def train_step(x, y):
    total = 0.0
    gradients = [tf.zeros_like(v) for v in model.trainable_variables]
    for start in range(0, x.shape[0], SLICE):
        with tf.GradientTape() as tape:
            predicted = model(x[start : start + SLICE], training=True)
            loss = tf.reduce_sum(tf.square(predicted - y[start : start + SLICE])) / x.shape[0]
        parts = tape.gradient(loss, model.trainable_variables)
        gradients = [g + part for g, part in zip(gradients, parts)]
        total += loss
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return total


for epoch in range(2):
    for start in range(0, len(images), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        loss = train_step(tf.constant(images[batch]), tf.constant(targets[batch]))
    print(f"epoch {epoch + 1}: loss {float(loss):.4f}")

print(f"final loss: {float(loss):.4f}")
