"""Augmentation before the cache: every epoch trains on the first one's noise."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.random((500, 32, 32, 3), dtype="float32")
y = rng.integers(0, 10, 500)

data = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .map(lambda image, label: (image + tf.random.normal(image.shape, stddev=0.1), label))
    .cache()
    .batch(50)
    .prefetch(2)
)
model = keras.Sequential(
    [keras.Input((32, 32, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(data, epochs=2, verbose=0)

print(f"final loss: {history.history['loss'][-1]:.4f}")
