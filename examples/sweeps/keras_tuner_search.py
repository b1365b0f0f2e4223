"""KerasTuner: each trial in a process of its own; one that does not fit fails by itself."""

import tempfile

import keras
import keras_tuner
import numpy as np

from legroom.integrations.keras_tuner import isolated


def build_model(hp):
    model = keras.Sequential(
        [
            keras.layers.UpSampling2D(hp.Choice("zoom", [1, 64])),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(8, 32, 32, 1)).astype("float32")
    y = x.mean(axis=(1, 2))

    tuner = keras_tuner.GridSearch(build_model, objective="loss", directory=tempfile.mkdtemp())
    with isolated(tuner, memory="512MiB"):
        tuner.search(x, y, batch_size=4, epochs=3, verbose=0)

    for trial in tuner.oracle.trials.values():
        print(f"zoom {trial.hyperparameters.get('zoom')}: {trial.status}")
    best = tuner.get_best_models()[0]
    print(f"best model: loss {best.evaluate(x, y, verbose=0):.3f}")
