"""Everything put on, and taken off again; run by test_uninstall.py, prints one JSON line."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import types

import keras
import numpy as np
import tensorflow as tf
from keras import layers

OWN = os.path.dirname(importlib.util.find_spec("legroom").origin) + os.sep


def owners():
    """All modules of Keras and TensorFlow that are loaded, and the classes in them."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("keras", "tensorflow") and type(module) is types.ModuleType:
            yield module
            yield from (x for x in list(vars(module).values()) if isinstance(x, type))


def ours():
    """What in Keras and TensorFlow is a function of legroom's."""
    found = set()
    for owner in owners():
        for name, value in list(vars(owner).items()):
            if isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith(OWN):
                found.add(f"{getattr(owner, '__qualname__', owner.__name__)}.{name}")
    return sorted(found)


def everything():
    """Every attribute of Keras's and TensorFlow's classes and modules, by identity."""
    return {
        (owner, name): value
        for owner in dict.fromkeys(owners())
        for name, value in list(vars(owner).items())
        if callable(value)
    }


def classifier():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


RNG = np.random.default_rng(0)
X, Y = RNG.random((44, 8), np.float32), RNG.integers(0, 3, 44)
FITTING = {"batch_size": 16, "verbose": 0, "shuffle": False}


def main() -> None:
    plain = classifier()
    for _ in range(4):
        plain.fit(X, Y, **FITTING)
    before = everything()

    import legroom
    from legroom.backends import patches
    from legroom.backends.tensorflow.input.fit_calls import follow_fits
    from legroom.backends.tensorflow.input.shuffle_seeds import seed_shuffles
    from legroom.core.events import Planned, sink
    from legroom.guarding.importing import after_import, install_when_imported

    seen: dict[str, object] = {}
    model, other = classifier(), classifier()
    other.fit(X, Y, **FITTING)
    install_when_imported()
    legroom.fit(model, X, Y, slice_size=5, **FITTING)
    legroom.guard(model, slice_size=4)
    model.fit(X, Y, **FITTING)
    # A model that Keras has trained before is guarded as well from now on.
    seen["trained_before_is_guarded"] = hasattr(other.fit(X, Y, **FITTING), "legroom")
    follow_fits(lambda *_: [])
    seed_shuffles(7)
    after_import("a_module_that_never_comes", print)
    weights = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.1)

    @legroom.step(slice_size=1)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weights * x)
        optimizer.apply(tape.gradient(loss, [weights]), [weights])
        return loss

    def slices_of_a_call() -> list[int | None]:
        """By what the guard tells: a step that notes its calls itself would not be sliced."""
        told: list[int | None] = []
        with sink.listening(
            lambda event: told.append(event.slice_size) if isinstance(event, Planned) else None
        ):
            step(tf.ones((2, 2)))
        return told

    seen["slices"] = slices_of_a_call()
    watching = legroom.watch()
    watching.__enter__()
    seen["on"] = ours()

    legroom.uninstall()
    seen["left"] = ours()
    after = everything()
    seen["changed"] = [str(key) for key in before if after.get(key) is not before[key]]
    seen["places"] = [str(place) for place in patches.places()]
    seen["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("legroom")]
    seen["listeners"] = len(sink._listeners)
    seen["finders"] = [str(f) for f in sys.meta_path if type(f).__module__.startswith("legroom")]
    seen["functions"] = type(model.train_function).__module__.startswith("legroom")
    seen["attributes"] = [name for name in vars(model) if "legroom" in name]
    watching.__exit__(None, None, None)

    seen["plain_again"] = not hasattr(model.fit(X, Y, **FITTING), "legroom")
    seen["slices_after"] = slices_of_a_call()

    legroom.load_ipython_extension(None)
    history = model.fit(X, Y, **FITTING)
    seen["on_again"] = history.legroom.samples_seen
    seen["same"] = all(
        np.allclose(one, two, rtol=1e-4, atol=1e-5)
        for one, two in zip(model.get_weights(), plain.get_weights(), strict=True)
    )
    legroom.unload_ipython_extension(None)
    seen["unloaded"] = ours()

    with legroom.watch():
        first = legroom.fit(classifier(), X, Y, **FITTING)
    again = legroom.fit(classifier(), X, Y, **FITTING)
    seen["in_watch"] = [hasattr(one, "legroom") for one in (first, again)]
    legroom.uninstall()
    seen["after_watch"] = ours()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
