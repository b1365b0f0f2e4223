"""A small CNN that has nearly all of its weights between Flatten and Dense."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.random((64, 64, 64, 3), dtype="float32")
y = rng.integers(0, 10, 64)

model = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
history = model.fit(x, y, batch_size=32, verbose=0)

print(f"final loss: {history.history['loss'][-1]:.4f}")
