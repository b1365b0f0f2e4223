"""Too large a batch of images, by Keras on JAX.

A step on 64 images of 192x192 takes about two gigabytes. JAX gives the weights away to each step:
where one runs out of memory they are gone, and `fit` may not even say so.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

IMAGE = (192, 192, 3)
CLASSES = 10
BATCH_SIZE = 64

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
labels = rng.integers(0, CLASSES, 128)
# Each class has a brightness of its own, so that there is something to learn.
images = rng.random((128, *IMAGE), dtype="float32") + labels[:, None, None, None] / CLASSES

model = keras.Sequential(
    [
        keras.Input(IMAGE),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Dropout(0.2),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(4),
        layers.Flatten(),
        layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])

history = model.fit(images, labels, batch_size=BATCH_SIZE, epochs=2)
print(f"final loss: {history.history['loss'][-1]:.4f}")
