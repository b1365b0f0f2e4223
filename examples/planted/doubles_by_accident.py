"""NumPy's random numbers are float64, and fit copies them as they are."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.random((20_000, 200))
y = rng.random((20_000, 1))

model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, batch_size=500, verbose=0)

print(f"final loss: {history.history['loss'][-1]:.4f}")
