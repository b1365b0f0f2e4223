"""What ``legroom demo`` trains: a small image classifier, written as anyone would write it.

It knows nothing of legroom, is never imported, and is run as a script, three times: with all the
memory it wants, with less than it needs, and with as little under ``legroom run``. At its end it
saves its weights and the loss of every epoch to the file that it was given, to be compared.

Its activations and pooling are smooth ones on purpose: at the kink of a ReLU a difference in the
last digit, which any change in the order of additions makes, turns a unit on or off.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

__all__ = ["main"]


def main(save_to: str) -> None:
    """Train, and save what came out."""
    side, classes, batch_size = 96, 10, 64
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 2 * batch_size)
    # Each class has stripes of its own width, under noise.
    stripes = np.sin(np.arange(side)[None, :, None, None] / (1 + labels[:, None, None, None]))
    images = (stripes + rng.normal(0, 0.5, (len(labels), side, side, 3))).astype("float32")

    model = keras.Sequential(
        [
            keras.Input((side, side, 3)),
            keras.layers.Conv2D(32, 3, padding="same", activation="swish"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Conv2D(64, 3, padding="same", activation="swish"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Conv2D(64, 3, padding="same", activation="swish"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = model.fit(images, labels, batch_size=batch_size, epochs=5, verbose=0)

    weights = {weight.path.replace("/", "."): np.array(weight) for weight in model.weights}
    np.savez(save_to, **weights, losses=history.history["loss"])


if __name__ == "__main__":
    main(sys.argv[1])
