"""Cross-validation: the folds run side by side, each in a process of its own."""

import numpy as np

import legroom


def make_data():
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(600, 20)).astype("float32")
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype("float32")


def train(fold):
    import keras

    x, y = make_data()
    test = np.arange(len(x)) % 3 == fold
    model = keras.Sequential(
        [
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    model.fit(x[~test], y[~test], epochs=8, verbose=2)
    return model.evaluate(x[test], y[test], verbose=0)[1]


if __name__ == "__main__":
    trials = legroom.sweep(train, range(3), memory="1GiB")
    accuracies = [trial.result for trial in trials]
    print(f"accuracy: {np.mean(accuracies):.3f} ± {np.std(accuracies):.3f}")
