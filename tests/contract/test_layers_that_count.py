"""Layers that remember something in Python, in models that run eagerly."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom
from legroom.backends.keras.slices.python_state import PythonState

from .comparing import RNG, VALUES, N, X, compare, compare_loops

AGAIN = "it changes {}.calls, which each slice would change again"


class Counting(layers.Layer):
    """Goes by how often it was called."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = 0
        self.width = None

    def build(self, shape):
        self.width = shape[-1]

    def call(self, x):
        self.calls += 1
        return x * (1 + self.calls % 3) + 0 * self.width


def compiled(model, eager=True):
    model.compile("sgd", "mse", run_eagerly=eager)
    return model


def sequential():
    return keras.Sequential([keras.Input((8,)), Counting(name="counter"), layers.Dense(1)])


def unbuilt():
    return keras.Sequential([Counting(name="counter"), layers.Dense(1)])


def functional():
    inputs = keras.Input((8,))
    inner = keras.Sequential([layers.Dense(4), keras.Sequential([Counting(name="counter")])])
    return keras.Model(inputs, layers.Dense(1)(inner(inputs)))


@pytest.mark.parametrize("build", [sequential, functional])
def test_a_layer_that_counts_its_calls(build):
    compare(lambda: compiled(build()), X, VALUES, refused=AGAIN.format("counter"))


def test_a_layer_that_is_not_built_yet():
    history = legroom.fit(compiled(unbuilt()), X, VALUES, batch_size=14, slice_size=5, verbose=0)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert [AGAIN.format("counter") in note for note in notes] == [True], notes


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_in_a_loop_written_by_hand():
    def train(decorate):
        model, optimizer = sequential(), keras.optimizers.SGD(0.05)

        @decorate
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        for _ in range(3):
            step(keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(VALUES))
        return [*model.variables, np.array(model.layers[0].calls)]

    compare_loops(train, refused=AGAIN.format("counter"))


class Remembering(layers.Dense):
    """Remembers what does not change from call to call."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.shape, self.ready, self.names = None, False, []

    def call(self, x):
        self.shape = tuple(x.shape[1:])
        if not self.ready:
            self.ready = True
            self.names.append("first")
        return super().call(x)


def test_a_layer_that_remembers_what_stays():
    def build():
        return compiled(keras.Sequential([keras.Input((8,)), Remembering(4), layers.Dense(1)]))

    compare(build, X, VALUES)


SEQUENCES = RNG.normal(size=(N, 5, 4)).astype("float32")


class OwnAttention(layers.MultiHeadAttention):
    """A subclass is the user's own."""


class OwnRecurrence(layers.LSTM):
    """The same."""


class Block(layers.Layer):
    """Layers in a layer."""

    def __init__(self):
        super().__init__()
        self.inner = [layers.Dense(4), layers.Dropout(0.2), OwnRecurrence(4)]

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, x, training=None):
        x = self.inner[1](self.inner[0](x), training=training)
        self.add_loss(keras.ops.mean(x) ** 2)
        return self.inner[2](x)


def many():
    inputs = keras.Input((5, 4))
    x = OwnAttention(2, 2)(inputs, inputs)
    x = layers.MultiHeadAttention(2, 2, dropout=0.1)(x, x)
    x = keras.Sequential([layers.Dense(4, activity_regularizer="l2"), layers.Dropout(0.3)])(x)
    x = layers.GRU(4, dropout=0.1, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(1)(Block()(x)))


def test_layers_that_remember_nothing_of_their_own_are_sliced():
    model = compiled(many())
    history = legroom.fit(model, SEQUENCES, VALUES, batch_size=14, slice_size=5, verbose=0)
    assert {e.data["slice_size"] for e in history.legroom.events if e.name == "plan"} == {5}


def test_batch_norm_is_named_and_nothing_else():
    class OwnNorm(layers.BatchNormalization):
        pass

    def build():
        norms = [layers.BatchNormalization(name="one"), OwnNorm(name="two")]
        return compiled(keras.Sequential([keras.Input((8,)), *norms, layers.Dense(1)]))

    compare(build, X, VALUES, changes="one and two mix the samples of a batch")


def test_what_a_layer_learns_when_it_is_built_stays():
    model = unbuilt()
    state = PythonState(model.call)
    model(X)
    assert state.restore() == []
    assert model.layers[0].width == 8


def test_a_traced_step_is_not_looked_into():
    history = legroom.fit(compiled(sequential(), eager=False), X, VALUES, verbose=0)
    assert not [event for event in history.legroom.events if event.name == "note"]
