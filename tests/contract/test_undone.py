"""A step that ends early, by whatever, has not happened; and what is tried leaves no mark."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import legroom
from legroom.backends.keras.slices.own_draws import own_draws
from legroom.backends.tensorflow.device import oom
from legroom.core.errors import OutOfMemoryError
from legroom.core.events import Event, Note, emit, listening

from .comparing import VALUES, X, assert_same, compare_loops, state_of

pytestmark = pytest.mark.on_tensorflow("is written with TensorFlow's own ops")

EAGER = pytest.mark.parametrize("eager", [False, True])


class Stopped(BaseException):
    """As Ctrl-C: no Exception."""


class Duel(keras.Model):
    """Two optimizers in turn, which can be made to fail after the first one's apply."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure
        self.armed = tf.Variable(False, trainable=False)
        self.one = keras.Sequential([keras.Input((8,)), layers.Dense(4, "tanh"), layers.Dense(1)])
        self.two = keras.Sequential(
            [keras.Input((8,)), layers.BatchNormalization(), layers.Dense(1)]
        )
        self.first, self.second = optimizers.Adam(0.02), optimizers.SGD(0.05, momentum=0.9)
        self.mean = keras.metrics.Mean(name="mean")

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.one(x) - y) ** 2)
        weights = self.one.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            other = tf.reduce_mean((self.two(x, training=True) - self.one(x)) ** 2)
        weights = self.two.trainable_weights
        gradients = tape.gradient(other, weights)
        self.mean.update_state(loss)
        if tf.executing_eagerly():
            if self.armed.numpy():
                raise self.failure
            self.second.apply_gradients(zip(gradients, weights, strict=True))
        else:
            gradients[0] = tf.py_function(self.check, [self.armed, gradients[0]], tf.float32)
            gradients[0].set_shape(weights[0].shape)
            self.second.apply_gradients(zip(gradients, weights, strict=True))
        return {"mean": self.mean.result()}

    def check(self, armed, gradient):
        if armed.numpy():
            raise ValueError("made to fail")
        return gradient

    def state(self):
        own = [*state_of(self), *self.first.variables, *self.second.variables]
        return [variable for variable in own if variable is not self.armed]


@pytest.mark.parametrize("slice_size", [None, 5])
@EAGER
def test_a_failure_between_two_optimizers(eager, slice_size):
    def made():
        keras.utils.set_random_seed(3)
        model = Duel(Stopped())
        model.compile(optimizer=None, run_eagerly=eager)
        return model

    x, y = X[:14], VALUES[:14]
    model, plain = made(), made()
    legroom.guard(model, slice_size=slice_size)
    model.train_on_batch(x, y)
    before = [np.array(variable) for variable in model.state()]
    model.armed.assign(True)
    with pytest.raises(Stopped if eager else tf.errors.OpError):
        model.train_on_batch(x, y)
    for variable, old in zip(model.state(), before, strict=True):
        np.testing.assert_array_equal(np.array(variable), old, err_msg=variable.name)
    model.armed.assign(False)
    if slice_size is None:  # BatchNorm is another one in slices
        for trained in (model, plain):
            trained.train_on_batch(x, y)
        plain.train_on_batch(x, y)
        assert_same(plain.state(), model.state())


@EAGER
def test_a_failure_in_an_ordinary_step(eager):
    """Statistics and seeds are put back as well; metrics Keras itself resets at the start."""
    armed = [False]

    def check(y):
        if armed[0]:
            raise ValueError("made to fail")
        return y

    def loss(y_true, y_pred):
        y_true = tf.ensure_shape(tf.py_function(check, [y_true], tf.float32), (None, 1))
        return tf.reduce_mean((y_true - y_pred) ** 2, axis=-1)

    model = keras.Sequential(
        [keras.Input((8,)), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    model.compile("adam", loss, metrics=["mae"], run_eagerly=eager)
    legroom.guard(model)
    model.train_on_batch(X, VALUES)
    kept = [*model.variables, *model.optimizer.variables]
    before = [np.array(variable) for variable in kept]
    armed[0] = True
    with pytest.raises(tf.errors.OpError):
        model.train_on_batch(X, VALUES)
    for variable, old in zip(kept, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), old, err_msg=variable.path)


def test_an_update_that_could_not_be_completed_is_not_made_again():
    ran_out = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    assert oom.is_oom(ran_out)

    calls = []

    @legroom.step
    def step(x):
        calls.append(x)
        raise OutOfMemoryError("written in part") from ran_out

    with pytest.raises(OutOfMemoryError):
        step(tf.constant(X))
    assert len(calls) == 1


def test_what_is_tried_draws_for_itself_while_other_threads_draw():
    np.random.seed(7)
    expected = [float(np.random.random()) for _ in range(400)]
    np.random.seed(7)
    drawn, go, done = [], threading.Event(), threading.Event()

    def draw():
        go.wait()
        for _ in range(200):
            drawn.append(float(np.random.random()))
        done.set()

    thread = threading.Thread(target=draw)
    thread.start()
    with own_draws():
        first = float(np.random.random())
        go.set()
        done.wait()
        np.random.normal(size=10)
    thread.join()
    assert first == expected[0]  # it draws what it would have drawn
    assert drawn == expected[:200]  # and others draw all that there is, once
    assert float(np.random.random()) == expected[200]


def test_a_step_that_draws_from_numpy():
    """Finding out about a step takes none of the numbers that its training draws."""

    def train(decorate):
        weight = keras.Variable(np.ones((8, 1), "float32"))
        optimizer = optimizers.SGD(0.1)
        optimizer.build([weight])
        np.random.seed(5)

        @decorate
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - y) ** 2)
            optimizer.apply([tape.gradient(loss, weight.value)], [weight])
            return loss

        step(tf.constant(X), tf.constant(VALUES))
        return [weight, np.random.random(3)]

    compare_loops(train)


def test_trainings_in_two_threads_have_reports_of_their_own():
    heard: dict[str, list[Event]] = {"a": [], "b": [], "all": []}
    together = threading.Barrier(2)

    def train(name):
        with listening(heard[name].append, own=True):
            together.wait()
            emit(Note(name))
            together.wait()

    with listening(heard["all"].append):
        threads = [threading.Thread(target=train, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.text for event in heard["a"]] == ["a"]
    assert [event.text for event in heard["b"]] == ["b"]
    assert sorted(event.text for event in heard["all"]) == ["a", "b"]


def test_two_fits_in_two_threads():
    histories = {}

    def train(samples, slice_size):
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        histories[samples] = legroom.fit(
            model, X[:samples], VALUES[:samples], batch_size=samples, epochs=3, verbose=0,
            slice_size=slice_size,
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=args) for args in ((20, 5), (12, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for samples, size in ((20, 5), (12, 4)):
        report = histories[samples].legroom
        assert (report.slice_size, report.batch_size) == (size, samples)
        assert report.samples_seen == 3 * samples


@pytest.mark.parametrize("function", [tf.function, lambda f: f], ids=["traced", "eager"])
def test_lookup_tables_and_data_sets_of_the_steps_own(function):
    cases = (("table", "it changes a lookup table"), ("data", "a data set of its own"))
    for kind, refused in cases:

        def train(decorate, kind=kind):
            weight = keras.Variable(np.ones((8, 1), "float32"))
            optimizer = optimizers.SGD(0.1)
            optimizer.build([weight])
            table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
            key = tf.constant(1, tf.int64)
            others = iter(tf.data.Dataset.range(1, 100).map(lambda n: tf.cast(n, tf.float32)))

            @decorate
            @function
            def step(x, y):
                factor = 1.0
                if kind == "table":
                    table.insert(key, table.lookup(key) + 1)
                else:
                    factor = next(others)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ weight - y) ** 2)
                gradient = tape.gradient(loss, weight.value)
                optimizer.apply([gradient / factor], [weight])
                return loss

            for _ in range(3):
                step(tf.constant(X), tf.constant(VALUES))
            return [weight, table.lookup(key)]

        compare_loops(train, refused=refused)
