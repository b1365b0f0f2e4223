"""A ballast moves up until a step of Keras on JAX fails at every place in turn: one JSON line each.

`jax_ballast_child.py LEVELS KIND…`. Run as a process of its own, because its address space is
limited for good. "plain" is Keras without legroom, which loses all weights; it comes last, because
it is not guarded any more.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time

import jax
import keras
import numpy as np

import legroom
from legroom.backends.base import named
from legroom.core.errors import LegroomError
from legroom.core.events import RanOut, listening

L = keras.layers
SIDE, SAMPLES = 48, 64
RNG = np.random.default_rng(5)
X = RNG.random((SAMPLES, SIDE, SIDE, 3), dtype="float32")
Y = RNG.integers(0, 5, SAMPLES)
TAKEN = 64 * 2**20  # in the midst of a step
# More than each of these steps needs.
MOST = {"whole": 220, "sliced": 110, "late": 160, "evaluate": 160, "eager": 480, "plain": 200}


class Late(L.Layer):
    """Takes memory in the midst of a step, of which XLA knows nothing."""

    def call(self, inputs):
        seen = jax.lax.stop_gradient(keras.ops.mean(inputs))
        found = jax.pure_callback(self._take, jax.ShapeDtypeStruct((), seen.dtype), seen)
        return inputs + 0 * jax.lax.stop_gradient(found)

    def _take(self, value):
        np.empty(TAKEN, np.uint8)
        return np.float32(value)


def build(kind):
    """A model whose step changes all kinds of state."""
    keras.utils.set_random_seed(7)
    if kind == "late":
        layers = [L.Dense(16), L.BatchNormalization(), L.Dropout(0.3), Late()]
    elif kind == "eager":  # what runs out in a convolution by itself ends the process
        layers = [L.Dense(64), L.BatchNormalization(), L.ReLU(), L.Dropout(0.3)]
    else:
        layers = [L.Conv2D(16, 3), L.BatchNormalization(), L.ReLU(), L.Dropout(0.3), L.Conv2D(8, 3)]
    model = keras.Sequential(
        [keras.Input((SIDE, SIDE, 3)), *layers, L.GlobalAveragePooling2D(), L.Dense(5)]
    )
    optimizer = keras.optimizers.AdamW(0.01, global_clipnorm=1.0, use_ema=True)
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=kind == "eager")
    model.optimizer.build(model.trainable_variables)
    return model


def variables(model):
    return [*model.variables, *model.optimizer.variables, *model.metrics_variables]


def state(model):
    return [np.array(variable.value) for variable in variables(model)]


def load(model, saved):
    for variable, value in zip(variables(model), saved, strict=True):
        variable.assign(value)


def same(one, other):
    return all(map(np.array_equal, one, other))


def ballast(kind, level, levels):
    """Leaves more and more."""
    device = named("jax").device
    gc.collect()
    device.forget_cached()
    left = device.limit_bytes() - device.in_use_bytes()
    return np.empty(max(0, left - MOST[kind] * 2**20 * (level + 1) // levels), np.uint8)


def late(event, seen):
    """Counts what failed in the midst of a step, and not before it."""
    seen["late"] += isinstance(event, RanOut) and event.needed_bytes == TAKEN


def walk(kind, levels):
    """The same step at each level of free memory."""
    model = build(kind)
    # Which leaves nothing to try after a failure.
    legroom.guard(model, slice_size=SAMPLES // 4 if kind == "sliced" else SAMPLES)
    call = model.test_on_batch if kind == "evaluate" else model.train_on_batch
    call = functools.partial(call, X, Y)
    model.train_on_batch(X[:8], Y[:8])  # after which metrics have their variables
    model.reset_metrics()  # as Keras does first
    before = state(model)
    call()
    after = state(model)
    began = time.monotonic()
    seen = {"kind": kind, "done": 0, "undone": 0, "late": 0, "torn": [], "lost": []}
    for level in range(levels):
        load(model, before)
        held, failed = ballast(kind, level, levels), ""
        try:
            with listening(lambda event: late(event, seen)):
                call()
        except (RuntimeError, MemoryError, LegroomError) as error:
            failed = f"{type(error).__name__}: {error}"[:90]
        del held
        gc.collect()
        try:
            now = state(model)
        except (RuntimeError, TypeError):
            seen["lost"].append([level, failed])
            break
        # Predictions and evaluations change next to nothing.
        if same(now, after) and not failed:
            seen["done"] += 1
        elif same(now, before) and failed:
            seen["undone"] += 1
        else:
            seen["torn"].append([level, failed])
    load(model, before)
    call()
    seen["trains_on"] = same(state(model), after)
    seen["seconds"] = time.monotonic() - began
    return seen


def plain(levels):
    """Keras by itself."""
    legroom.uninstall()
    model = build("late")
    model.fit(X[:8], Y[:8], verbose=0)
    held, failed = ballast("plain", levels // 3, levels), ""
    try:
        model.fit(X, Y, batch_size=SAMPLES, verbose=0)
    except (RuntimeError, TypeError) as error:
        failed = str(error)[:200]
    del held
    gc.collect()
    try:
        state(model)
    except (RuntimeError, TypeError) as error:
        return {"kind": "plain", "returned": not failed, "lost": str(error)[:200]}
    return {"kind": "plain", "returned": not failed, "lost": ""}


def main():
    levels, kinds = int(sys.argv[1]), sys.argv[2:]
    named("jax").device.set_limit(3 * 2**29)
    for kind in kinds:
        print(json.dumps(plain(levels) if kind == "plain" else walk(kind, levels)), flush=True)


if __name__ == "__main__":
    main()
