"""What a comparison on a few samples does not show by numbers alone is named all the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import legroom
from legroom.core.events import listening

pytestmark = pytest.mark.on_tensorflow("is written with TensorFlow's own ops")

X = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")


class Added(layers.Layer):
    """Adds a loss of its inputs."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss
        self.weight = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(self.loss(self, x))
        return x


def spread(x):
    """Of the samples around their mean: it mixes them."""
    return ops.mean(ops.var(x, axis=0))


def size(x):
    return ops.sum(ops.square(x), axis=-1)


MIXES = {
    "floor": lambda self, x: ops.maximum(ops.mean(size(x)), 1e-6),
    "below its floor": lambda self, x: ops.maximum(ops.mean(size(x)), 1e6),
    "floor of each axis": lambda self, x: ops.sum(ops.maximum(ops.mean(x * x, axis=0), 1e-6)),
    "ceiling": lambda self, x: ops.minimum(ops.mean(size(x)), 1e6),
    "hinge": lambda self, x: ops.relu(ops.mean(size(x)) + 1),
    "choice": lambda self, x: (lambda m: ops.where(m > 1e-6, m, 0.5 * m))(ops.mean(size(x))),
    "asleep": lambda self, x: self.weight * spread(x),
}
ALIKE = {
    "floor of each sample": lambda self, x: ops.mean(ops.maximum(size(x), 1.0)),
    "mean": lambda self, x: ops.mean(ops.relu(x)),
    "floor of a weight": lambda self, x: ops.maximum(self.weight + 1, 0.5) * ops.mean(size(x)),
    "sum asleep": lambda self, x: self.weight * ops.sum(size(x)),
    "mean asleep": lambda self, x: self.weight * ops.mean(size(x)),
}


def trained(loss, weight, sliced):
    keras.utils.set_random_seed(1)
    added = Added(loss)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4), added, layers.Dense(8)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    wake = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda e, _: added.weight.assign(e * weight)
    )
    options = {"batch_size": 16, "epochs": 2, "verbose": 0, "shuffle": False, "callbacks": [wake]}
    if not sliced:
        model.fit(X, X, **options)
        return model.get_weights(), []
    history = legroom.fit(model, X, X, slice_size=4, **options).legroom
    assert history.slice_size == 4
    return model.get_weights(), [e.text for e in history.events if e.name == "note"]


@pytest.mark.parametrize("loss", MIXES)
def test_what_may_mix_samples_later_is_named(loss):
    _, said = trained(MIXES[loss], 1.0, True)
    assert any("mixes the samples of a batch" in text for text in said), said


@pytest.mark.parametrize("loss", ALIKE)
def test_what_never_mixes_samples_is_the_same_and_not_named(loss):
    plain, _ = trained(ALIKE[loss], 0.1, False)
    sliced, said = trained(ALIKE[loss], 0.1, True)
    assert not said
    for one, other in zip(plain, sliced, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def test_a_number_that_must_stay_zero():
    class Strict(layers.Layer):
        def __init__(self):
            super().__init__()
            self.number = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            tf.debugging.assert_equal(self.number, 0.0)
            return x + self.number

    model = keras.Sequential([keras.Input((8,)), Strict(), layers.Dense(8)])
    model.compile("sgd", "mse")
    report = legroom.fit(model, X, X, batch_size=16, slice_size=4, verbose=0).legroom
    assert report.slice_size == 4
    assert not [event for event in report.events if event.name == "note"]


def own_step(model, optimizer, weight):
    """A step with a warm-up, by the number that `weight` makes of its argument."""

    def step(x, number):
        with tf.GradientTape() as tape:
            z = model(x, training=True)
            loss = tf.reduce_mean((z - x) ** 2) + weight(optimizer, number) * spread(z)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


@pytest.mark.parametrize("compiled", [True, False], ids=["traced", "eager"])
@pytest.mark.parametrize(
    "weight",
    [
        lambda optimizer, number: number,
        lambda optimizer, number: tf.minimum(tf.cast(optimizer.iterations, tf.float32) / 1e3, 1.0),
    ],
    ids=["argument", "count of steps"],
)
def test_a_warm_up_in_a_step_of_ones_own_is_seen(weight, compiled):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
    optimizer = keras.optimizers.SGD(0.01)
    step = own_step(model, optimizer, weight)
    step = legroom.step(slice_size=4)(tf.function(step) if compiled else step)
    said = []
    with listening(lambda event: said.append(event.text)):
        step(tf.constant(X), tf.constant(0.0))
    assert any("mixes the samples of a batch" in text for text in said), said
    assert int(optimizer.iterations) == 1
