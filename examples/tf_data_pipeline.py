"""A tf.data pipeline: images are cast, flipped, batched and prefetched.

The data is kept as uint8 and turned to floats batch by batch, so the input is not what fills the
memory. The batch that comes out of the pipeline is still too large for the model, and the fit ends
with a ResourceExhaustedError.
"""

import numpy as np
import tensorflow as tf

SIDE = 256
BATCH_SIZE = 48
STEPS = 3

tf.keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
labels = rng.integers(0, 2, BATCH_SIZE * STEPS)
images = rng.integers(0, 120, (len(labels), SIDE, SIDE, 3), dtype="uint8")
# The class is the colour of a square that lies anywhere in the image.
for image, label, (x, y) in zip(images, labels, rng.integers(0, SIDE - 80, (len(labels), 2))):
    image[x : x + 80, y : y + 80, label] = 255


def prepare(image, label):
    image = tf.cast(image, tf.float32) / 255
    image = tf.image.random_flip_left_right(image, seed=3)
    return image, label


dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.map(prepare).batch(BATCH_SIZE).prefetch(1)

model = tf.keras.Sequential(
    [
        tf.keras.Input((SIDE, SIDE, 3)),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.GlobalMaxPooling2D(),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])

history = model.fit(dataset, epochs=2)
print(f"final loss: {history.history['loss'][-1]:.4f}")
