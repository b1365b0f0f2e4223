"""More loops as users write them, beside those of loops_child.py; run by test_watch.py."""

from __future__ import annotations

import functools
import sys
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from loops_child import ROUNDS, SPEC, X, Y, leak, main, net, rows, sound

SQUARE = (500, 500)  # a megabyte of float32


def wide(units: int = 600) -> keras.Model:
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(units),
                              keras.layers.Dense(units), keras.layers.Dense(4)])  # fmt: skip
    model.compile("adam", "mse")
    return model


@leak
def ensemble() -> None:
    results = []
    for k in range(ROUNDS):
        model = wide()
        loss = model.fit(X, Y, verbose=0).history["loss"][-1]
        results.append({"number": k, "model": model, "loss": loss})


@leak
def histories() -> None:
    kept = {}
    for k in range(ROUNDS):
        kept[k] = wide().fit(X, Y, verbose=0)


@leak
def trainings_in_a_comprehension() -> None:
    def train(units: int) -> float:
        model = wide(units)
        return float(model.fit(X, Y, verbose=0).history["loss"][-1])

    assert len([train(100 + k) for k in range(ROUNDS)]) == ROUNDS


@leak
def trainings_by_map() -> None:
    """No loop of the user's is to be seen: a library's (a tuner's) looks the same."""

    def train(units: int) -> float:
        model = wide(units)
        return float(model.fit(X, Y, verbose=0).history["loss"][-1])

    assert len(list(map(train, range(100, 100 + ROUNDS)))) == ROUNDS


@leak
def grid_of_trainings() -> None:
    for units in (100, 200):
        for _fold in range(ROUNDS // 2):
            wide(units).fit(X, Y, verbose=0)


@leak
def few_large_trainings() -> None:
    for _ in range(4):
        wide(2000).fit(X[:8], Y[:8], verbose=0)


@leak
def function_in_the_body() -> None:
    model, optimizer = net(), keras.optimizers.Adam()
    for _ in range(ROUNDS):

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        step(X, Y)


@leak
def new_closures() -> None:
    @tf.function
    def applied(function: Any, x: Any) -> Any:
        return function(x)

    for k in range(ROUNDS):
        applied(lambda x, k=k: x * k, tf.ones((100, 100)))


@leak
def xla_over_new_shapes() -> None:
    @tf.function(jit_compile=True)
    def total(values: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(values))

    for size in range(1, ROUNDS + 1):
        total(tf.ones((size, 30)))


@leak
def tapes() -> None:
    model, kept = wide(), []
    x = np.random.rand(2000, 20).astype("float32")
    for _ in range(ROUNDS):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        tape.gradient(loss, model.trainable_variables)
        kept.append(tape)


class Keeper(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.outputs.append(tf.random.normal(SQUARE))


@leak
def callback_that_keeps() -> None:
    net().fit(X, Y, epochs=ROUNDS, verbose=0, callbacks=[Keeper()])


@leak
def results_remembered() -> None:
    @functools.cache
    def features(_number: int) -> Any:
        return tf.random.normal(SQUARE)

    for k in range(ROUNDS):
        features(k)


class Node:
    def __init__(self, before: Any, value: Any) -> None:
        self.before, self.value = before, value


@leak
def chain() -> None:
    node = None
    for _ in range(ROUNDS):
        node = Node(node, tf.random.normal(SQUARE))


@leak
def tensor_that_grows() -> None:
    seen = tf.zeros((0, 500))
    for _ in range(2 * ROUNDS):
        seen = tf.concat([seen, tf.random.normal(SQUARE)], 0)


@leak
def cached_sets_kept() -> None:
    sets = []
    for _ in range(ROUNDS):
        data = tf.data.Dataset.from_tensor_slices(np.random.rand(300, 2000)).batch(30).cache()
        for _batch in data:
            pass
        sets.append(data)


@sound
def array_that_grows() -> None:
    seen = np.zeros(0)
    for _ in range(2 * ROUNDS):
        seen = np.concatenate([seen, np.random.rand(200_000)])


@sound
def cache_that_fills() -> None:
    data = tf.data.Dataset.range(40).map(lambda k: tf.random.normal((1500, 500))).cache()
    for _epoch in range(2):
        for _batch in data:
            pass


@sound
def models_in_turn() -> None:
    models = [net(), net(), net()]
    for k in range(2 * ROUNDS):
        models[k % 3].fit(X, Y, verbose=0)


@sound
def emptied_now_and_then() -> None:
    kept: list[Any] = []
    for _ in range(4 * ROUNDS):
        kept.append(tf.random.normal((300, 300)))
        if len(kept) == 8:
            kept.clear()


@sound
def curriculum() -> None:
    inputs = keras.Input((None, 20))
    outputs = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    for k in range(2 * ROUNDS):
        model.fit(np.random.rand(64, 5 * (k // 4 + 1), 20), Y, verbose=0)


@sound
def checkpoints() -> None:
    model = net()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(ROUNDS):
            save = keras.callbacks.ModelCheckpoint(f"{folder}/{k}.keras")
            stop = keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
            model.fit(X, Y, epochs=2, verbose=0, callbacks=[save, stop])


@sound
def fit_on_a_generator() -> None:
    model = net()
    for _ in range(ROUNDS):
        model.fit(((X, Y) for _ in range(3)), verbose=0)


@sound
def parts_of_one_data_set() -> None:
    model = net()
    data = tf.data.Dataset.from_generator(rows, output_signature=SPEC).batch(16).cache()
    for _ in range(ROUNDS):
        model.fit(data.take(3), validation_data=data.skip(3), verbose=0)


@sound
def small_ensemble() -> None:
    models = []
    for _ in range(4):
        model = wide(2000)
        model.fit(X[:8], Y[:8], verbose=0)
        models.append(model)


@sound
def few_large_temporaries() -> None:
    for _ in range(4):
        model = wide(2000)
        model.predict(X, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1:])
