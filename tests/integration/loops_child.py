"""Loops that leak and loops that do not, each watched; run by test_watch.py.

Prints one JSON line for each loop that was asked for: its name and what was found.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import legroom

LEAKS: dict[str, Callable[[], None]] = {}
SOUND: dict[str, Callable[[], None]] = {}
ROUNDS = 10
X, Y = np.random.rand(64, 20).astype("float32"), np.random.rand(64, 4).astype("float32")


def leak(function: Callable[[], None]) -> Callable[[], None]:
    LEAKS[function.__name__] = function
    return function


def sound(function: Callable[[], None]) -> Callable[[], None]:
    SOUND[function.__name__] = function
    return function


def net(*, jit: bool = False, name: str | None = None) -> keras.Model:
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(8), keras.layers.Dense(4)],
                             name=name)  # fmt: skip
    model.compile("adam", "mse", jit_compile=jit)
    return model


def rows() -> Any:
    yield from zip(X, Y, strict=True)


SPEC = (tf.TensorSpec((20,)), tf.TensorSpec((4,)))


@leak
def new_models() -> None:
    for _ in range(ROUNDS):
        net().fit(X, Y, verbose=0)


@leak
def new_models_of_one_name() -> None:
    for _ in range(ROUNDS):
        model = net(name="mine")
        model.fit(X, Y, verbose=0)
        del model
        keras.utils.clear_session()


@leak
def compiled_again() -> None:
    model = net()
    for _ in range(ROUNDS):
        model.compile("adam", "mse")
        model.fit(X, Y, verbose=0)


@leak
def new_shapes() -> None:
    @tf.function
    def total(values: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(values))

    for size in range(1, ROUNDS + 1):
        total(tf.ones((size, 3)))


@leak
def new_numbers() -> None:
    @tf.function
    def scaled(values: Any, factor: Any) -> Any:
        return values * factor

    k = 0
    while k < ROUNDS:
        scaled(tf.ones(3), k)
        k += 1


@leak
def tensors_in_a_list() -> None:
    outputs = []
    for _ in range(ROUNDS):
        outputs.append(tf.random.normal((400, 400)))


class Logger:
    def __init__(self) -> None:
        self.logged: dict[int, Any] = {}


@leak
def tensors_in_an_attribute() -> None:
    logger = Logger()
    for k in range(ROUNDS):
        logger.logged[k] = {"loss": tf.random.normal((500, 500)), "step": k}


@leak
def generators() -> None:
    for _ in range(ROUNDS):
        data = tf.data.Dataset.from_generator(rows, output_signature=SPEC).batch(16)
        for _batch in data:
            pass


@leak
def xla_models() -> None:
    for _ in range(ROUNDS):
        net(jit=True).fit(X, Y, verbose=0)


@leak
def models_in_a_list() -> None:
    models = []
    for _ in range(ROUNDS):
        models.append(keras.Sequential([keras.Input((900,)), keras.layers.Dense(900)]))


@sound
def one_model() -> None:
    model = net()
    for _ in range(ROUNDS):
        model.fit(X, Y, verbose=0)


@sound
def released() -> None:
    for _ in range(ROUNDS):
        net().fit(X, Y, verbose=0)
        legroom.release()


@sound
def history_of_numbers() -> None:
    model, losses = net(), []
    for _ in range(ROUNDS):
        losses.append(model.fit(X, Y, verbose=0).history)


@sound
def validation_now_and_then() -> None:
    model = net()
    for k in range(ROUNDS):
        model.fit(X, Y, verbose=0)
        if k % 3 == 2:
            model.evaluate(X, Y, verbose=0)


@sound
def replay_buffer() -> None:
    buffer = []
    for _ in range(ROUNDS):
        buffer.append((np.random.rand(300_000), 1.0))


@sound
def bounded_buffer() -> None:
    buffer: Any = collections.deque(maxlen=500)
    for _ in range(ROUNDS):
        buffer.append(np.random.rand(300_000))


@sound
def warm_up() -> None:
    cache: dict[int, Any] = {}
    for k in range(2 * ROUNDS):
        if k % 5 not in cache:
            cache[k % 5] = np.random.rand(2_000_000)


@sound
def few_shapes() -> None:
    @tf.function
    def total(values: Any) -> Any:
        return tf.reduce_sum(values)

    for k in range(2 * ROUNDS):
        total(tf.ones((1 + k % 3, 3)))


@sound
def train_on_batch() -> None:
    model = net()
    for _ in range(5 * ROUNDS):
        model.train_on_batch(X[:16], Y[:16])


@sound
def predictions() -> None:
    model = net()
    for _ in range(2 * ROUNDS):
        model.predict(X, verbose=0)


@sound
def own_step() -> None:
    model, optimizer = net(), keras.optimizers.Adam()

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    losses = []
    for _ in range(5 * ROUNDS):
        losses.append(float(step(X, Y)))


@sound
def eager_step() -> None:
    model, optimizer = net(), keras.optimizers.SGD()
    losses = []
    for _ in range(2 * ROUNDS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - Y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        losses.append(loss)


@sound
def data_made_again() -> None:
    model = net()
    for _ in range(ROUNDS):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), verbose=0)


@sound
def one_generator_data_set() -> None:
    data = tf.data.Dataset.from_generator(rows, output_signature=SPEC).batch(16)
    for _ in range(ROUNDS):
        for _batch in data:
            pass


@sound
def large_temporaries() -> None:
    for _ in range(2 * ROUNDS):
        np.random.rand(random.randrange(100_000, 3_000_000)).sum()


@sound
def saved_and_loaded() -> None:
    model = net()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            model.save(f"{folder}/model.keras")
            keras.models.load_model(f"{folder}/model.keras").predict(X, verbose=0)


@sound
def copies_of_weights() -> None:
    model, best = net(), None
    for _ in range(ROUNDS):
        model.fit(X, Y, verbose=0)
        best = model.get_weights()
    assert best is not None


@sound
def moving_window() -> None:
    window: list[Any] = []
    for _ in range(3 * ROUNDS):
        window.append(tf.random.normal((200, 200)))
        window = window[-5:]


@sound
def learning_rates() -> None:
    model = net()
    for k in range(ROUNDS):
        model.optimizer.learning_rate = 0.1 / (k + 1)
        model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.EarlyStopping(monitor="loss")])


@sound
def garbage_in_cycles() -> None:
    for _ in range(3 * ROUNDS):
        cycle: list[Any] = [np.random.rand(100_000)]
        cycle.append(cycle)


def main(asked: list[str]) -> None:
    """Run loops by their names, or all of the "leaks" or of the "sound" ones."""
    for name in {"leaks": list(LEAKS), "sound": list(SOUND)}.get(asked[0], asked):
        with legroom.watch(quiet=True) as watch:
            {**LEAKS, **SOUND}[name]()
        legroom.release()
        found = [finding.to_dict() for finding in watch.findings]
        print(json.dumps({"name": name, "found": found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
