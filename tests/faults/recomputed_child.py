"""A model that mixes the samples of a batch, trained with exact=True: with a cap, and without.

Called with the cap in bytes, or with 0 for none; prints the losses, the weights and the events.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from keras import layers

import legroom


def main() -> None:
    """Train, and tell how it went."""
    if cap := int(sys.argv[1]):
        legroom.limit(cap)
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((64, 64, 3))
    for _ in range(10):
        x = layers.ReLU()(layers.Conv2D(16, 3, padding="same")(x))
        x = layers.Dropout(0.1)(layers.BatchNormalization(momentum=0.5)(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    pictures = np.random.default_rng(0).random((64, 64, 64, 3), dtype="float32")
    history = legroom.fit(
        model, pictures, np.arange(64) % 10, batch_size=32, epochs=2, shuffle=False, verbose=0,
        exact=True,
    )  # fmt: skip
    report = history.legroom
    print(
        json.dumps(
            {
                "losses": history.history["loss"],
                "weights": [float(np.abs(w).sum()) for w in model.get_weights()],
                "ooms": report.ooms,
                "recomputed": [
                    event.data["recompute"]
                    for event in report.events
                    if event.name == "plan" and event.data.get("recompute")
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
