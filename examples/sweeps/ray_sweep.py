"""The same sweep on a cluster: of RAY_ADDRESS where that is set, else on this machine with Ray."""

import legroom


def train(config):
    import keras
    import numpy as np

    x = np.random.default_rng(0).normal(size=(256, 20)).astype("float32")
    y = np.tanh(x[:, :4]).sum(axis=1, keepdims=True)
    model = keras.Sequential(
        [keras.layers.Dense(config["units"], activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model.fit(x, y, epochs=3, verbose=2)


if __name__ == "__main__":
    configs = [{"units": 16}, {"units": 128}]
    # On several machines, folder= has to be one that all of them share: a path, or "s3://…".
    trials = legroom.sweep(train, configs, engine="ray")
    for trial in trials:
        print(f"{trial.config}: {trial.status}, loss {trial.result['loss'][-1]:.3f}")
