"""Optuna: its trials share the memory; one that does not fit is pruned, and the search goes on."""

import optuna

from legroom.integrations.optuna import Objective


def suggest(trial):
    return {"size": trial.suggest_categorical("size", [16, 32, 2048])}


def train(config):
    import keras
    import numpy as np

    size = config["size"]
    x = np.random.default_rng(0).normal(size=(4, size, size, 1)).astype("float32")
    y = x.mean(axis=(1, 2))
    model = keras.Sequential(
        [
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    history = model.fit(x, y, batch_size=4, epochs=3, verbose=2)
    return history.history["loss"][-1]


if __name__ == "__main__":
    sampler = optuna.samplers.GridSampler({"size": [16, 32, 2048]}, seed=0)
    study = optuna.create_study(sampler=sampler)
    with Objective(suggest, train, memory="512MiB") as objective:
        study.optimize(objective, n_trials=3, n_jobs=2)
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    for trial in pruned:
        print(f"{trial.params} does not fit: {trial.user_attrs['legroom_error']}")
    print(f"best: {study.best_params}, loss {study.best_value:.3f}; {len(pruned)} pruned")
