"""A wide model on a wide table.

A table of a thousand columns through layers of a thousand units, in batches of thousands of rows
to keep the processor busy: with tabular data nobody thinks of memory, since a row is only 4 kB.
The activations of four wide layers are what does not fit.
"""

import keras
import numpy as np
from keras import layers

ROWS, COLUMNS = 36_000, 1_000
BATCH_SIZE = 18_000

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
table = rng.standard_normal((ROWS, COLUMNS), dtype="float32")
bought = (table[:, :20].sum(axis=1) > 0).astype("float32")

model = keras.Sequential(
    [
        keras.Input((COLUMNS,)),
        layers.Dense(1024, activation="gelu"),
        layers.Dense(1024, activation="gelu"),
        layers.Dense(1024, activation="gelu"),
        layers.Dense(1024, activation="gelu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-4), loss="binary_crossentropy", metrics=["accuracy"]
)

history = model.fit(table, bought, batch_size=BATCH_SIZE, epochs=1)
print(f"final loss: {history.history['loss'][-1]:.4f}")
