"""Trains on four devices, plain and in slices; prints as JSON how far apart they end."""

from __future__ import annotations

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import keras
import numpy as np
from keras import distribution, layers

import legroom
from legroom.core.events import listening

RNG = np.random.default_rng(0)
X = RNG.normal(size=(44, 8)).astype("float32")  # batches of 16, 16 and 12
Y = RNG.normal(size=(44, 1)).astype("float32")


def data_parallel():
    return distribution.DataParallel(devices=distribution.list_devices())


def model_parallel():
    mesh = distribution.DeviceMesh((2, 2), ["batch", "model"], distribution.list_devices())
    layout = distribution.LayoutMap(mesh)
    layout[".*hidden/kernel"] = (None, "model")
    layout[".*hidden/bias"] = ("model",)
    return distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def build():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, "tanh", name="hidden"),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def states(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(v), "float64") for v in variables]


def main():
    distribution.set_distribution({"data": data_parallel, "model": model_parallel}[sys.argv[1]]())
    fitting = {"batch_size": 16, "epochs": 3, "verbose": 0, "shuffle": False}
    plain, sliced, events = build(), build(), []
    expected = plain.fit(X, Y, **fitting).history
    with listening(events.append):
        got = legroom.fit(sliced, X, Y, slice_size=5, **fitting).history
        predictions = [m.predict(X, batch_size=16, verbose=0) for m in (plain, sliced)]
    pairs = zip(states(plain), states(sliced), strict=True)
    distances = [np.abs(one - other).max(initial=0) for one, other in pairs]
    result = {
        "distance": float(max(distances)),
        "moved": float(np.abs(states(plain)[0] - states(build())[0]).max()),
        "history": max(float(np.abs(np.subtract(expected[k], got[k])).max()) for k in expected),
        "predictions": float(np.abs(predictions[0] - predictions[1]).max()),
        "notes": [event.text for event in events if event.name == "note"],
        "sliced": [event.data["slice_size"] for event in events if event.name == "plan"],
        "same_layout": all(
            one.value.sharding.is_equivalent_to(other.value.sharding, one.ndim)
            for one, other in zip(plain.variables, sliced.variables, strict=True)
        ),
        "kernel_part": sliced.trainable_variables[0].value.addressable_shards[0].data.shape,
    }
    print(json.dumps(result))


main()
