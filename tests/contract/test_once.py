"""What a step does beside its tensors happens once, when Keras would do it: with room, as it is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom

pytestmark = pytest.mark.on_tensorflow("is written with TensorFlow's own ops")


def fits(model, guarded):
    return (lambda *a, **o: legroom.fit(model, *a, **o)) if guarded else model.fit


class Curious(keras.Model):
    """Looks at something that its optimizer has written, after it has."""

    def __init__(self, look):
        super().__init__()
        self.dense = layers.Dense(3)
        self._look = look
        self.seen = []

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.seen.append(float(np.sum(self._look(self))))
        return {"loss": loss}


@pytest.mark.parametrize(
    "look",
    [
        lambda model: model.optimizer.iterations.numpy(),
        lambda model: model.optimizer.learning_rate.numpy(),
        lambda model: model.optimizer.variables[-1].numpy(),
        lambda model: tf.reduce_sum(tf.gather(model.dense.kernel, [0, 1])),
    ],
    ids=["count", "scheduled rate", "slot", "rows"],
)
def test_an_eager_step_sees_what_it_has_applied(look):
    seen = []
    for guarded in (False, True):
        keras.utils.set_random_seed(3)
        model = Curious(look)
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        model.compile(keras.optimizers.Adam(rate), run_eagerly=True)
        fits(model, guarded)(np.ones((64, 4)), np.ones((64, 3)), batch_size=16, verbose=0)
        seen.append(model.seen)
    assert seen[1] == pytest.approx(seen[0], rel=1e-6)


class Duel(keras.Model):
    """Applies two optimizers, draws by NumPy, and takes from an iterator of its own."""

    def __init__(self):
        super().__init__()
        self.taken = iter(range(1000))
        self.one = keras.Sequential([keras.Input((4,)), layers.Dense(8)])
        self.two = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        self.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)]

    def train_step(self, x):
        next(self.taken)
        losses = {}
        for net, optimizer in zip((self.two, self.one), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                noise = tf.random.normal((len(x), 4)) + np.random.normal(size=(len(x), 4))
                fake = self.two(self.one(noise))
                loss = tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-self.two(x)))
            weights = net.trainable_weights
            gradients = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
            losses[net.name] = loss
        return losses


def test_an_eager_step_is_begun_once():
    taken, weights = [], []
    for guarded in (False, True):
        keras.utils.set_random_seed(7)
        model = Duel()
        model.compile(run_eagerly=True)
        x = np.random.normal(size=(64, 8)).astype("float32")
        fits(model, guarded)(x, batch_size=16, verbose=0)
        taken.append(next(model.taken))
        weights.append(model.get_weights())
    assert taken == [4, 4]
    for plain, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-7)


def step_of(model, optimizer, traced):
    @tf.function
    def step(iterator):
        traced.append(True)
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


def test_a_step_that_takes_an_iterator_is_traced_for_all_of_them():
    x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(32)
    weights = []
    for decorate in (lambda step: step, legroom.step):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(8), layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        traced = []
        step = decorate(step_of(model, optimizer, traced))
        counts = []
        for _ in range(4):
            iterator = iter(data)
            for _ in range(3):
                step(iterator)
            counts.append(len(traced))
        weights.append(model.get_weights())
    assert counts[0] == counts[-1], "each epoch's iterator was another step"
    for plain, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-7)


@pytest.fixture
def functions_run_eagerly():
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("functions_run_eagerly")
@pytest.mark.parametrize("slice_size", [None, 4])
def test_functions_that_are_run_eagerly_to_debug_them(slice_size):
    options = {} if slice_size is None else {"slice_size": slice_size}
    x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
    weights = []
    for decorate in (lambda step: step, legroom.step(**options)):
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(4, "relu"), layers.Dense(1)])
        model.compile("sgd", "mse")
        fit = model.fit if not weights else lambda *a, **o: legroom.fit(model, *a, **options, **o)  # noqa: B023
        fit(x, x[:, :1], batch_size=16, verbose=0, shuffle=False)
        optimizer = keras.optimizers.SGD(0.05)

        @decorate
        @tf.function
        def step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        for start in range(0, 48, 16):
            part = tf.constant(x[start : start + 16])
            step(part, part[:, :1])
        assert int(optimizer.iterations) == int(model.optimizer.iterations) == 3
        weights.append(model.get_weights())
    for plain, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-6)
