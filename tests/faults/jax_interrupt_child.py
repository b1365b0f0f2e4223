"""Ctrl-C at random moments of trainings by Keras on JAX; prints what was left: a JSON line a kind.

`jax_interrupt_child.py KIND…`. Nothing is capped: weights are given away to each step, as Keras
does it. "plain" is Keras without legroom; it comes last, because nothing is guarded after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time

import keras
import numpy as np

import legroom

L = keras.layers
STEPS, BATCH, WIDTH = 3, 512, 600
RNG = np.random.default_rng(3)
X = RNG.random((STEPS * BATCH, WIDTH), dtype="float32")
Y = RNG.integers(0, 5, STEPS * BATCH)
TIMES = {"compiling": 3, "plain": 30}


class Pressed(keras.callbacks.Callback):
    """Tells when a batch begins, and may read the weights after each."""

    def __init__(self, batch, reads=False):
        super().__init__()
        self.batch = batch
        self.reads = reads
        self.begun = threading.Event()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            self.begun.set()

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin

    def on_train_batch_end(self, batch, logs=None):
        if self.reads:
            self.model.get_weights()


def build():
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *[L.Dense(WIDTH, "relu") for _ in range(6)],
         L.BatchNormalization(), L.Dropout(0.3), L.Dense(5)]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    return model


def variables(model):
    return [*model.variables, *model.optimizer.variables]


def state(model):
    return [np.array(variable.value) for variable in variables(model)]


def load(model, saved):
    for variable, value in zip(variables(model), saved, strict=True):
        variable.assign(value)


def same(one, other):
    return all(map(np.array_equal, one, other))


def train(model, *callbacks):
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))


def reference(model):
    """The state before each step and after the last, and how long a step takes."""
    states = [state(model)]
    train(model, keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: (model.jax_state_sync(), states.append(state(model)))
    ))  # fmt: skip
    load(model, states[0])
    train(model)
    load(model, states[0])
    began = time.monotonic()
    train(model)
    return states, (time.monotonic() - began) / STEPS


def press(call, begun, seconds):
    """Call, with Ctrl-C so long after it has begun; whether that ended it."""

    def thread():
        begun.wait()
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=thread)
    presser.start()
    try:
        call()
    except KeyboardInterrupt:
        presser.join()
        return True
    with contextlib.suppress(KeyboardInterrupt):
        begun.set()
        presser.join()
        time.sleep(0.1)  # which the signal ends; Python drops one that comes while it collects
    return False


def try_kind(kind, states, step_seconds):
    rng = random.Random(kind)
    model = build()
    if kind != "plain":
        legroom.guard(model)
    load(model, states[0])
    seen = {"kind": kind, "pressed": 0, "interrupted": 0, "torn": [], "lost": 0}
    for _ in range(TIMES.get(kind, 15)):
        if kind == "compiling":
            model = legroom.guard(build())
            load(model, states[0])
        elif not seen["pressed"]:
            train(model)
        load(model, states[0])
        pressed = Pressed(STEPS - 1 if kind == "last" else 0, reads=kind == "reading")
        rest = {"batch_size": BATCH, "verbose": 0, "callbacks": [pressed]}
        call = {
            "evaluate": lambda: model.evaluate(X, Y, **rest),  # noqa: B023
            "predict": lambda: model.predict(X, **rest),  # noqa: B023
        }.get(kind, lambda: train(model, pressed))  # noqa: B023
        longest = 1.0 if kind == "compiling" else step_seconds
        seen["interrupted"] += press(call, pressed.begun, rng.random() ** 2 * longest)
        seen["pressed"] += 1
        try:
            now = state(model)
        except (RuntimeError, TypeError):
            seen["lost"] += 1
            if kind == "plain":
                break
            model = legroom.guard(build())
            continue
        if not any(same(now, each) for each in states):
            seen["torn"].append(seen["pressed"])
    else:
        load(model, states[0])
        train(model)
        seen["trains_on"] = same(state(model), states[-1])
    return seen


def main():
    model = legroom.guard(build())
    states, step_seconds = reference(model)
    for kind in sys.argv[1:]:
        if kind == "plain":
            legroom.uninstall()
        print(json.dumps(try_kind(kind, states, step_seconds)), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
