"""Loops that were written once the watch was there, to find what it misses; run by test_watch.py.

With those of loops_child.py and more_loops_child.py.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from loops_child import ROUNDS, X, Y, leak, main, net, sound
from more_loops_child import SQUARE, wide

import legroom


@leak
def variables_in_a_list() -> None:
    kept = []
    for _ in range(ROUNDS):
        kept.append(tf.Variable(tf.random.normal(SQUARE)))


@leak
def iterators_kept() -> None:
    data = tf.data.Dataset.range(40).map(lambda k: tf.random.normal(SQUARE)).shuffle(10)
    begun = []
    for _ in range(ROUNDS):
        iterator = iter(data)
        next(iterator)
        begun.append(iterator)


@leak
def loss_of_its_own_each_time() -> None:
    model = wide()
    for k in range(ROUNDS):
        model.compile("adam", lambda y, p, k=k: tf.reduce_mean((y - p) ** 2) * (k + 1))
        model.fit(X, Y, verbose=0)


@leak
def python_functions_in_maps() -> None:
    for k in range(ROUNDS):
        data = tf.data.Dataset.range(4).map(
            lambda i, k=k: tf.py_function(lambda j: float(j) + k, [i], tf.float32)
        )
        for _number in data:
            pass


@leak
def lambdas_that_hold() -> None:
    later = []
    for _ in range(ROUNDS):
        value = tf.random.normal(SQUARE)
        later.append(lambda value=value: value + 1)


def fails() -> None:
    work = tf.random.normal(SQUARE)
    raise ValueError(f"nothing to do with {work.shape}")


@leak
def errors_kept() -> None:
    errors = []
    for _ in range(ROUNDS):
        try:
            fails()
        except ValueError as error:
            errors.append(error)


class Agent:
    seen: ClassVar[list[Any]] = []

    def act(self) -> None:
        self.seen.append({"state": tf.random.normal(SQUARE), "reward": 1.0})


@leak
def class_attribute() -> None:
    for _ in range(ROUNDS):
        Agent().act()
    Agent.seen.clear()


def numbers() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.random.rand(10, 50_000).astype("float32"))


@leak
def data_sets_joined() -> None:
    data = numbers()
    for _ in range(ROUNDS):
        data = data.concatenate(numbers())


@leak
def generators_suspended() -> None:
    def first_numbers() -> Iterator[float]:
        large = tf.random.normal(SQUARE)
        while True:
            yield float(large[0, 0])

    begun = []
    for _ in range(ROUNDS):
        generator = first_numbers()
        next(generator)
        begun.append(generator)


@leak
def threads_that_wait() -> None:
    """What a thread holds is no variable of the user's; the line that made it is."""
    over = threading.Event()

    def wait(value: Any) -> None:
        over.wait()
        del value

    for _ in range(ROUNDS):
        threading.Thread(target=wait, args=(tf.random.normal(SQUARE),), daemon=True).start()
    over.set()


@leak
def optimizers_with_steps() -> None:
    model = wide()
    for k in range(ROUNDS):
        optimizer = keras.optimizers.Adam(1e-3 / (k + 1))
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x: Any, y: Any, optimizer: Any = optimizer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        step(X, Y)


@leak
def growing_model() -> None:
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(4)])
    for _ in range(ROUNDS):
        model.add(keras.layers.Dense(4))
        model.compile("adam", "mse")
        model.fit(X, Y, verbose=0)


@leak
def models_in_partials() -> None:
    predictors = []
    for _ in range(ROUNDS):
        model = keras.Sequential([keras.Input((900,)), keras.layers.Dense(900)])
        predictors.append(functools.partial(model.predict, verbose=0))


@leak
def xla_models_released() -> None:
    """What `release()` can't free, it does not hide."""
    for _ in range(ROUNDS):
        net(jit=True).fit(X, Y, verbose=0)
        legroom.release()


@sound
def metrics_made_again() -> None:
    for _ in range(3 * ROUNDS):
        error = keras.metrics.MeanSquaredError()
        error.update_state(Y, Y)
        float(error.result())


@sound
def predictions_of_any_size() -> None:
    model = wide()
    for k in range(3 * ROUNDS):
        model.predict(np.random.rand(10 + 7 * k, 20), verbose=0)


@sound
def first_batch_only() -> None:
    made = tf.data.Dataset.range(400).map(lambda k: tf.random.normal(SQUARE))
    data = made.shuffle(10).prefetch(2)
    for _ in range(2 * ROUNDS):
        for _batch in data:
            break


@sound
def callbacks_of_one_model() -> None:
    model, used = wide(), []
    for _ in range(ROUNDS):
        used.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None))
        model.fit(X, Y, verbose=0, callbacks=used)


@sound
def summaries() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for k in range(2 * ROUNDS):
            with tf.summary.create_file_writer(f"{folder}/{k}").as_default():
                tf.summary.scalar("loss", 0.5, step=k)


@sound
def errors_dropped() -> None:
    for _ in range(3 * ROUNDS):
        try:
            fails()
        except ValueError as error:
            str(error)


@sound
def sub_model_predicts() -> None:
    features, head = wide(), net()
    for _ in range(ROUNDS):
        for _part in range(3):
            features.predict(X, verbose=0)
        head.fit(X, Y, verbose=0)


@sound
def moving_average_of_weights() -> None:
    model = wide()
    average = model.get_weights()
    for _ in range(2 * ROUNDS):
        model.train_on_batch(X, Y)
        pairs = zip(average, model.get_weights(), strict=True)
        average = [0.9 * before + 0.1 * now for before, now in pairs]


@sound
def best_of_many() -> None:
    best = None
    for _ in range(2 * ROUNDS):
        score, made = np.random.rand(), tf.random.normal((700, 700))
        if best is None or score > best[0]:
            best = (score, made)


if __name__ == "__main__":
    main(sys.argv[1:])
