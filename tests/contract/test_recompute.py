"""Recomputed parts give the plain step's training: weights, statistics, seeds, losses, metrics.

Every case trains plain and with blocks of layers recomputed, from the same numbers.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

from legroom.backends.keras.recompute_blocks import (
    block_order,
    keep_everything,
    recompute_blocks,
)
from legroom.core.errors import UnsupportedModelError

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(12, 8, 8, 3)).astype("float32")
LABELS = RNG.integers(0, 4, 12)
TOKENS = RNG.integers(1, 30, (12, 10))
TOKENS[:, 7:] = 0


def convolutional():
    """A residual net with everything that draws, remembers or adds a loss."""
    inputs = keras.Input((8, 8, 3))
    x = short = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.BatchNormalization(momentum=0.5)(x)
    x = layers.ReLU()(x)
    x = layers.Conv2D(8, 3, padding="same", activity_regularizer="l2", kernel_regularizer="l2")(x)
    x = layers.Dropout(0.4)(x)
    x = layers.Add()([x, short])
    x = layers.GaussianNoise(0.3)(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(0.5)(layers.Dense(16, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(4)(x)), IMAGES


def attention():
    """A transformer's block and an LSTM, with masks and dropout in both."""
    inputs = keras.Input((10,), dtype="int32")
    x = layers.Embedding(30, 16, mask_zero=True)(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8, dropout=0.2)(x, x)])
    x = layers.LayerNormalization()(x)
    x = layers.LSTM(8, dropout=0.2)(layers.Dense(16, activation="gelu")(x))
    return keras.Model(inputs, layers.Dense(4)(x)), TOKENS


class StochasticDepth(layers.Layer):
    """Drops samples, with a seed of its own."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x, training=None):
        if not training:
            return x
        return x * ops.floor(
            0.7 + keras.random.uniform((ops.shape(x)[0], 1, 1, 1), seed=self.seeds)
        )


class RawNoise(layers.Layer):
    """Draws with the framework's own generator, which no seed of Keras brings back."""

    def call(self, x, training=None):
        if not training:
            return x
        if keras.backend.backend() == "torch":
            import torch

            return x * torch.rand(x.shape)
        if keras.backend.backend() == "jax":
            import jax

            return x * jax.random.uniform(jax.random.key(3), x.shape)
        import tensorflow as tf

        return x * tf.random.uniform(tf.shape(x))


class Subclassed(keras.Model):
    """Layers called from Python, one of which writes a weight that is trained."""

    def __init__(self):
        super().__init__()
        self.first = layers.SpectralNormalization(layers.Conv2D(8, 3, padding="same"))
        self.norm = layers.BatchNormalization(momentum=0.5)
        self.depth = StochasticDepth()
        self.noise = RawNoise()
        self.last = keras.Sequential([layers.Flatten(), layers.Dropout(0.3), layers.Dense(4)])

    def call(self, x, training=None):
        x = self.norm(self.first(x, training=training))
        return self.last(self.noise(self.depth(x), training=training))


def subclassed():
    """The subclassed model, built."""
    model = Subclassed()
    model(IMAGES[:1])
    return model, IMAGES


def nested():
    """A model in a model: what is recomputed inside of something recomputed."""
    inner = keras.Sequential(
        [layers.Conv2D(4, 3), layers.BatchNormalization(momentum=0.5), layers.Dropout(0.2)]
    )
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(8, 3), inner, layers.Flatten(), layers.Dense(4)]
    )
    return model, IMAGES


def train(build, *, length=None, eager=False, compiled=False):
    """Train a model, with blocks of so many layers recomputed."""
    keras.utils.set_random_seed(1)
    model, x = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=eager, jit_compile=compiled)
    if length is not None:
        recompute_blocks(model, blocks(model, length))
    keras.utils.set_random_seed(5)
    history = model.fit(x, LABELS, batch_size=6, epochs=2, shuffle=False, verbose=0)
    return model, history


def blocks(model, length):
    """All layers of a model, in blocks of neighbours."""
    chains = block_order(model)
    return [chain[i : i + length] for chain in chains for i in range(0, len(chain), length)]


def assert_same(one, other, tolerance=1e-6):
    """Compare everything that training changed."""
    (plain, before), (recomputed, after) = one, other
    for a, b in zip(plain.variables, recomputed.variables, strict=True):
        values = ops.convert_to_numpy(b), ops.convert_to_numpy(a)
        np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance, err_msg=a.path)
    for key, values in before.history.items():
        np.testing.assert_allclose(after.history[key], values, rtol=tolerance, err_msg=key)


@pytest.mark.parametrize("build", [convolutional, attention, subclassed, nested])
def test_the_same_training(build):
    assert_same(train(build), train(build, length=3))


@pytest.mark.parametrize("build", [convolutional, subclassed])
def test_eager(build):
    assert_same(train(build, eager=True), train(build, length=3, eager=True))


def test_every_layer_by_itself():
    assert_same(train(convolutional), train(convolutional, length=1))


@pytest.mark.not_on_torch("torch.compile decides by itself what it computes again")
def test_compiled():
    plain = train(convolutional, compiled=True)
    assert_same(plain, train(convolutional, length=3, compiled=True))


@pytest.mark.on_tensorflow("PyTorch runs ops in the order of the code")
def test_masks_are_drawn_again_only_when_the_gradients_arrive():
    import tensorflow as tf

    x = inputs = keras.Input((16,))
    for _ in range(4):
        x = layers.Dropout(0.5)(layers.Dense(16)(x))
    model = keras.Model(inputs, x)
    recompute_blocks(model, blocks(model, 2))
    model.compile("sgd", "mse")

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    graph = gradients.get_concrete_function(tf.TensorSpec((8, 16))).graph
    draws = [op for op in graph.get_operations() if op.type == "StatelessRandomUniformV2"]
    waiting = [op for op in draws if any("gradient_tape" in name for name in before(op))]
    assert len(draws) == 8
    assert len(waiting) >= 3  # the loss's own gradient, for the last block, is a constant


def before(op):
    """The names of all ops that an op waits for."""
    names, ops_left = set(), [op]
    while ops_left:
        at = ops_left.pop()
        new = [*(tensor.op for tensor in at.inputs), *at.control_inputs]
        ops_left += [each for each in new if each.name not in names]
        names |= {each.name for each in new}
    return names


def test_keeping_everything_again():
    model, _ = convolutional()
    before = model._run_through_graph
    recompute_blocks(model, blocks(model, 3))
    assert model._run_through_graph != before
    keep_everything(model)
    assert model._run_through_graph == before


def test_a_layer_that_is_not_there():
    model, _ = convolutional()
    with pytest.raises(UnsupportedModelError, match="no layer of that name"):
        recompute_blocks(model, [["nothing_like_it"]])
