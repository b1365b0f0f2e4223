"""A step whose ops run in order is the same step: weights, statistics, seeds, losses, metrics.

Every case trains by Keras's own `fit` and with its ops in order, from the same numbers.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.backend.common import global_state

from legroom.backends.tensorflow.step import whole
from legroom.guarding.options import GuardOptions, Start
from legroom.guarding.registry import registry

pytestmark = pytest.mark.on_tensorflow("is about graphs of TensorFlow")

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(14, 32, 32, 3)).astype("float32")
LABELS = RNG.integers(0, 4, 14)
TOKENS = RNG.integers(1, 30, (14, 10))
TOKENS[:, 7:] = 0
BATCH = 6  # the last batch of an epoch is smaller


def branches():
    """Towers side by side, with all that draws, remembers or adds a loss, to one output."""
    inputs, ends = towers()
    return keras.Model(inputs, layers.Dense(4)(layers.Concatenate()(ends))), IMAGES, LABELS


def two_outputs():
    """The same to several outputs, each with its loss."""
    inputs, (one, *others) = towers()
    ends = {"one": one, "other": layers.Concatenate()(others)}
    outputs = {name: layers.Dense(4, name=name)(end) for name, end in ends.items()}
    return keras.Model(inputs, outputs), IMAGES, {"one": LABELS, "other": LABELS[::-1].copy()}


def towers():
    inputs = keras.Input((32, 32, 3))
    ends = []
    for width in (4, 8, 6):
        x = layers.Conv2D(width, 3, padding="same", kernel_regularizer="l2")(inputs)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
        x = layers.GaussianNoise(0.2)(layers.Dropout(0.3)(x))
        ends.append(layers.GlobalAveragePooling2D()(layers.Conv2D(width, 3)(x)))
    return inputs, ends


def loops():
    """Recurrent layers forwards and backwards, with masks and dropout."""
    inputs = keras.Input((10,), dtype="int32")
    x = layers.Embedding(30, 16, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(8, dropout=0.2))(x)
    return keras.Model(inputs, layers.Dense(4)(x)), TOKENS, LABELS


class OwnStep(keras.Model):
    """A training step of its own, that draws from TensorFlow's generator and counts."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            noisy = x + 0.1 * tf.random.stateless_normal(tf.shape(x), [1, 2])
            loss = self.compute_loss(y=y, y_pred=self(noisy, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def own_step():
    model, x, y = branches()
    return OwnStep(model.inputs, model.outputs), x, y


class TwoApplies(OwnStep):
    """Applies twice, so that all it writes is kept while it runs."""

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


def two_applies():
    model, x, y = branches()
    return TwoApplies(model.inputs, model.outputs), x, y


def train(build, *, ordered, optimizer="adam", policy="float32"):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model, x, y = build()
    finally:
        keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = {name: ["accuracy"] for name in y} if isinstance(y, dict) else ["accuracy"]
    if isinstance(model, OwnStep):
        metrics = None  # which its own step does not look at
    if optimizer == "adam":
        # What is zero in theory is noise in fact, of which Adam makes whole steps.
        optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-3)
    model.compile(optimizer, loss, metrics=metrics)
    if ordered:
        registry.add(model, GuardOptions(start=Start(BATCH, BATCH, 0, ordered=True)))
    keras.utils.set_random_seed(5)
    global_state.set_global_attribute("global_seed_generator", None)  # old versions leave it
    history = model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    if ordered:
        registry.remove(model)
    drawn = keras.random.uniform(()), tf.random.uniform(())
    state = [*model.variables, *model.optimizer.variables]
    return [
        *((v.path, v.numpy()) for v in state),
        *((key, np.array(values)) for key, values in history.history.items()),
        ("drawn after it", np.array(drawn)),
    ]


def assert_same(plain, ordered, tolerance):
    for (name, value), (_, other) in zip(plain, ordered, strict=True):
        np.testing.assert_allclose(other, value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture
def edges(monkeypatch):
    """How many ops were made to wait, for each trace."""
    found = []
    impose = whole.impose_order

    def noted(*args):
        found.append(impose(*args))

    monkeypatch.setattr(whole, "impose_order", noted)
    return found


@pytest.mark.parametrize("build", [loops, two_outputs, two_applies])
def test_the_same_training(build, edges):
    plain, ordered = train(build, ordered=False), train(build, ordered=True)
    assert edges[-1] > 0
    # oneDNN makes one op of a bias's and a kernel's gradients where neither waits for another op.
    assert_same(plain, ordered, 5e-6)


def test_the_same_training_in_half_precision(edges):
    plain = train(own_step, ordered=False, optimizer="sgd", policy="mixed_float16")
    ordered = train(own_step, ordered=True, optimizer="sgd", policy="mixed_float16")
    assert edges[-1] > 0
    assert_same(plain, ordered, 1e-3)
