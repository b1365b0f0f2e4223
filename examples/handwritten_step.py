"""A training step and a loop written by hand.

No compile and no fit: a tf.function computes the gradients and applies the optimizer, and a loop
calls it for every batch. The batch is too large, and the first call of the step ends with a
ResourceExhaustedError.
"""

import numpy as np
import tensorflow as tf

IMAGE = (64, 64, 3)
BATCH_SIZE = 512

tf.keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
labels = rng.integers(0, 10, 2 * BATCH_SIZE).astype("int32")
images = (rng.random((len(labels), *IMAGE)) * labels[:, None, None, None] / 10).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH_SIZE)

model = tf.keras.Sequential(
    [
        tf.keras.Input(IMAGE),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = tf.keras.optimizers.Adam(learning_rate=0.001)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_fn(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(labels, predictions)
    return loss


for epoch in range(2):
    accuracy.reset_state()
    for image_batch, label_batch in dataset:
        loss = train_step(image_batch, label_batch)
    print(f"epoch {epoch + 1}: loss {float(loss):.4f}, accuracy {float(accuracy.result()):.2f}")

print(f"final loss: {float(loss):.4f}")
