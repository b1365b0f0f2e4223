"""Images made floats first, and then shuffled in a buffer as large as the data set."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.integers(0, 256, (2000, 64, 64, 3), dtype="uint8")
y = rng.integers(0, 10, 2000)

data = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))
    .shuffle(len(x))
    .batch(50)
    .prefetch(2)
)
model = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("sgd", "sparse_categorical_crossentropy")
history = model.fit(data, verbose=0)

print(f"final loss: {history.history['loss'][-1]:.4f}")
