"""Trainings with Keras, as a plain loop and as a sweep: `loop FOLDER` or `sweep FOLDER`."""

import json
import os
import sys
import time

PAUSE = 0.15
# The fourth needs more than its share, and the fifth more than there is.
CONFIGS = [
    {"rows": 48, "lr": 1e-3},
    {"rows": 48, "lr": 3e-3},
    {"rows": 96, "lr": 1e-3},
    {"rows": 1600, "lr": 1e-3},
    {"rows": 6000, "lr": 1e-3},
]
MEMORY = "320MiB"


def train(config):
    import keras
    import numpy as np

    keras.utils.set_random_seed(7)
    rows = config["rows"]
    samples = rows if rows > 1000 else 2 * rows
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(samples, 32, 8)).astype("float32")
    y = rng.integers(0, 10, samples)
    model = keras.Sequential(
        [
            keras.layers.Dense(96, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(96, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(config["lr"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(PAUSE)

    history = model.fit(x, y, batch_size=rows, epochs=6, verbose=0, callbacks=[Slow()])
    weights = [float(np.abs(keras.ops.convert_to_numpy(w)).sum()) for w in model.weights]
    return {"loss": history.history["loss"], "weights": weights}


if __name__ == "__main__":
    if sys.argv[1] == "loop":
        print(json.dumps([train(config) for config in CONFIGS]))
    else:
        import legroom

        trials = legroom.sweep(train, CONFIGS, memory=MEMORY, workers=2, folder=sys.argv[2])
        assert "keras" not in sys.modules
        assert os.environ.get("LEGROOM_MEMORY") is None
        print(json.dumps([trial.to_dict() for trial in trials]))
