"""Steps that draw from generators of Python and NumPy, and losses that are not a number."""

from __future__ import annotations

import random
from queue import SimpleQueue

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom
from legroom.core.events import listening

from .comparing import VALUES, X, compare

OTHERS = "it draws its own random numbers ({}), and slices would draw different ones"


class Noisy(keras.Model):
    """Adds noise to its batch."""

    def __init__(self, noise):
        super().__init__()
        self.dense = layers.Dense(1)
        self.noise = noise
        self.rng = np.random.default_rng(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        x = x + self.noise(self, x.shape)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def build(noise, eager=True):
    model = Noisy(noise)
    model(X[:1])
    model.compile("sgd", run_eagerly=eager)
    return model


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@pytest.mark.parametrize(
    "noise",
    [
        lambda model, shape: np.random.normal(size=shape).astype("float32"),
        lambda model, shape: model.rng.normal(size=shape).astype("float32"),
    ],
    ids=["module", "generator"],
)
def test_noise_of_each_sample_is_the_same_in_slices(noise):
    compare(lambda: build(noise), X, VALUES)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_noise_is_the_same_after_slices_ran_out_of_memory():
    ends, failed = [], []
    for guarded in (False, True):
        sizes = SimpleQueue()  # which nobody puts back

        def noise(model, shape, sizes=sizes, guarded=guarded):
            drawn = model.rng.normal(size=shape).astype("float32")
            later = int(model.optimizer.iterations) == 1
            if guarded and shape[0] > 4 and (shape[0] == 14 or (later and sizes.qsize() < 2)):
                sizes.put(shape[0])
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return drawn

        keras.utils.set_random_seed(3)
        model = build(noise)
        fit = legroom.fit if guarded else keras.Model.fit
        fit(model, X, VALUES, batch_size=14, epochs=3, shuffle=False, verbose=0)
        ends.append(model.get_weights())
        failed.append([sizes.get() for _ in range(sizes.qsize())])
    assert [len(sizes) for sizes in failed] == [0, 2], failed
    for plain, sliced in zip(*ends, strict=True):
        np.testing.assert_allclose(sliced, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (lambda model, shape: np.float32(np.random.normal()), "numpy.random"),
        (lambda model, shape: np.float32(random.gauss(0, 1)), "random"),
        (lambda model, shape: model.rng.normal(size=shape[1:]).astype("float32"), "self.rng"),
    ],
    ids=["module", "python", "generator"],
)
def test_noise_of_the_batch_is_not_drawn_again(noise, name):
    compare(lambda: build(noise), X, VALUES, refused=OTHERS.format(name))


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_noise_that_a_graph_keeps():
    fixed = []

    def noise(model, shape):
        fixed.append(np.random.normal())
        return np.float32(fixed[-1])

    history = legroom.fit(
        build(noise, eager=False), X, VALUES, batch_size=14, slice_size=5, verbose=0
    )
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert [OTHERS.format("numpy.random") in note for note in notes] == [True], notes


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_a_second_pass_draws_again():
    def train(decorate):
        weights = [keras.Variable(np.ones((8, 1), "float32")) for _ in range(2)]
        optimizers = [keras.optimizers.SGD(0.1) for _ in weights]
        for optimizer, weight in zip(optimizers, weights, strict=True):
            optimizer.build([weight])

        @decorate
        def step(x, y):
            x = x + np.random.normal(size=x.shape).astype("float32")
            for optimizer, weight in zip(optimizers, weights, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ weights[0] + x @ weights[1] - y) ** 2)
                optimizer.apply([tape.gradient(loss, weight.value)], [weight])
            return loss

        step(tf.constant(X), tf.constant(VALUES))
        return weights

    notes = []
    with listening(lambda event: event.name == "note" and notes.append(event.text)):
        train(legroom.step(slice_size=5))
    wanted = "numpy.random draws random numbers that slices can't draw alike"
    assert [wanted in note for note in notes] == [True], notes


def test_a_layer_that_draws_by_numpy():
    class Noise(layers.Layer):
        def call(self, x):
            return x * np.float32(np.random.normal(size=()))

    def build():
        model = keras.Sequential([keras.Input((8,)), Noise(), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    compare(build, X, VALUES, changes="numpy.random draws random numbers that slices can't draw")


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_loss_that_is_not_a_number(eager):
    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=eager)
        return model

    history = legroom.fit(build(), X, np.nan * VALUES, batch_size=14, slice_size=5, verbose=0)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert ["its loss is infinite or not a number (NaN)" in note for note in notes] == [True], notes
