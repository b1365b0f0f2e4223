"""Random layers train the same in slices: each slice draws the rows of the whole batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom
from legroom.backends.keras.recompute_blocks import recompute_blocks
from legroom.backends.keras.slices.runs import Drawn
from legroom.backends.tensorflow.slices.draws import cutting, read_draws
from legroom.core.events import listening

from .comparing import LABELS, RNG, VALUES, N, X, compare, relative

IMAGES = RNG.normal(size=(N, 8, 8, 3)).astype("float32")
SERIES = RNG.normal(size=(N, 5, 6)).astype("float32")
UNIFORM, NORMAL = "stateless_random_uniform_v2", "stateless_random_normal_v2"


class Noise(layers.Layer):
    """Draws by a function of its own, from a generator of its own."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.generator = keras.random.SeedGenerator(7)

    def call(self, x):
        return self.draw(x, self.generator)


def size(x):
    return keras.ops.shape(x)[0]


def flat(*random, shape=(8,), after=(), **compiling):
    """A net with something random in it."""

    def build():
        net = [keras.Input(shape), *(make() for make in (*random, *after)), layers.Flatten()]
        model = keras.Sequential([*net, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", **compiling)
        return model

    return build


def image(random):
    return flat(random, shape=(8, 8, 3), after=[lambda: layers.Conv2D(3, 3)]), IMAGES


def own(draw):
    return flat(lambda: Noise(draw), after=[lambda: layers.Dense(6, "tanh")]), X


def attention():
    inputs = keras.Input((5, 6))
    x = layers.MultiHeadAttention(2, 4, dropout=0.3)(inputs, inputs)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
    model.compile(keras.optimizers.SGD(0.05), "mse")  # Adam moves where a gradient is but rounding
    return model


def folded(x, generator):
    """Two rows for each sample, one after the other."""
    rows = keras.ops.reshape(x, (-1, 4))
    drawn = keras.random.uniform((2 * size(x), 4), seed=generator)
    return keras.ops.reshape(rows * drawn, (-1, 8))


def joined(x, generator):
    """Two rows for each sample, all first ones before all second ones."""
    both = keras.ops.concatenate([x, x])
    both = both * keras.random.uniform((2 * size(x), 8), seed=generator)
    return both[: size(x)] + both[size(x) :]


def looped(x, generator):
    def body(i, y):
        return i + 1, y * keras.random.uniform((size(x), 8), seed=generator)

    return keras.ops.while_loop(lambda i, y: i < 3, body, (0, x))[1]


def in_single(draw, kind):
    return lambda x, g: x * keras.ops.cast(draw(keras.ops.shape(x), dtype=kind, seed=g), "float32")


CROPS = pytest.mark.on_tensorflow("Keras can't crop in a sequential model on PyTorch")
IN_ORDER = pytest.mark.on_tensorflow("PyTorch draws its numbers one after the other")
BY_SAMPLE = pytest.mark.not_on_jax("is written with TensorFlow's own ops")
SAME = {
    "dropout": (flat(lambda: layers.Dense(6), lambda: layers.Dropout(0.4)), X),
    "rows of seven": (flat(lambda: layers.Dense(7), lambda: layers.Dropout(0.4)), X),
    "noise": (flat(lambda: layers.GaussianNoise(0.4)), X),
    "gaussian dropout": (flat(lambda: layers.GaussianDropout(0.4)), X),
    "alpha dropout": (flat(lambda: layers.AlphaDropout(0.3)), X),
    "one mask for all": (flat(lambda: layers.Dropout(0.4, noise_shape=(1, 8))), X),
    "spatial": image(lambda: layers.SpatialDropout2D(0.4)),
    "flip": image(lambda: layers.RandomFlip()),
    "rotation": image(lambda: layers.RandomRotation(0.3)),
    "contrast": image(lambda: layers.RandomContrast(0.3)),
    "crop": image(lambda: layers.RandomCrop(6, 6)),
    "recurrent": (
        flat(lambda: layers.LSTM(4, dropout=0.3, recurrent_dropout=0.2), shape=(5, 6)), SERIES,
    ),
    "attention": (attention, SERIES),
    "without samples": own(lambda x, g: x * keras.random.uniform((8,), seed=g)),
    "as long as a slice": own(lambda x, g: x[:, :5] * keras.random.uniform((5, 5), seed=g)[0]),
    "eight bytes": own(in_single(keras.random.uniform, "float64")),
    "two bytes": own(in_single(keras.random.normal, "float16")),
    "whole numbers": own(
        lambda x, g: x * keras.ops.cast(keras.random.randint((size(x), 8), 0, 5, seed=g), "float32")
    ),
    "two rows a sample": own(folded),
    "in a loop": own(looped),
    "a fixed seed": own(lambda x, g: x * keras.random.uniform(keras.ops.shape(x), seed=5)),
}  # fmt: skip
CHANGED = {
    "truncated": lambda x, g: x * keras.random.truncated_normal(keras.ops.shape(x), seed=g),
    "gamma": lambda x, g: x * keras.random.gamma(keras.ops.shape(x), 2.0, seed=g),
    "binomial": lambda x, g: x * keras.random.binomial(keras.ops.shape(x), 3.0, 0.5, seed=g),
    "shuffled": lambda x, g: x + keras.random.shuffle(x, seed=g),
    "stateful": lambda x, g: x * tf.random.uniform(tf.shape(x)),
    "samples second": lambda x, g: (
        x * keras.ops.transpose(keras.random.uniform((8, size(x)), seed=g))
    ),
    "not in order": joined,
    "by sample": lambda x, g: tf.map_fn(lambda row: row * keras.random.uniform((8,), seed=g), x),
}


def all_in_one():
    """Every draw that goes through samples of eight numbers, one after the other."""
    kinds = [layers.GaussianNoise, layers.GaussianDropout, layers.AlphaDropout, layers.Dropout]
    # In a loop, Keras can't draw from a generator on JAX.
    in_a_loop = [looped] if keras.backend.backend() != "jax" else []
    own_kinds = [folded, *in_a_loop, in_single(keras.random.uniform, "float64"),
                 in_single(keras.random.normal, "float16"),
                 lambda x, g: x * keras.random.uniform((8,), seed=g)]  # fmt: skip
    return flat(*[lambda kind=kind: kind(0.3) for kind in kinds],
                lambda: layers.Dropout(0.2, noise_shape=(1, 8)),
                *[lambda draw=draw: Noise(draw) for draw in own_kinds],
                after=[lambda: layers.Dense(7), lambda: layers.Dropout(0.1)])  # fmt: skip


def all_augmentations():
    kinds = [layers.RandomFlip, lambda: layers.RandomRotation(0.2),
             lambda: layers.RandomContrast(0.2), lambda: layers.RandomTranslation(0.2, 0.2),
             lambda: layers.RandomCrop(6, 6)]  # fmt: skip
    after = [lambda: layers.Conv2D(3, 3), lambda: layers.SpatialDropout2D(0.3)]
    return flat(*kinds, shape=(8, 8, 3), after=after)


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (all_in_one(), X),
        pytest.param(all_augmentations(), IMAGES, marks=CROPS),
        SAME["attention"],
        SAME["as long as a slice"],
    ],
    ids=["all", "augmentations", "attention", "as long as a slice"],
)
def test_the_same_in_slices(build, x):
    compare(build, x, VALUES, tolerance=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=CROPS if case == "crop" else ()) for case in SAME]
)
def test_each_by_itself(case):
    build, x = SAME[case]
    compare(build, x, VALUES, tolerance=1e-5)


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[*([] if name in ("shuffled", "by sample") else [pytest.mark.long]),
                               *([IN_ORDER] if name in ("truncated", "stateful") else []),
                               *([BY_SAMPLE] if name == "by sample" else [])])
     for name in CHANGED],
)  # fmt: skip
def test_what_slices_draw_otherwise_is_named(case):
    build, x = own(CHANGED[case])
    compare(build, x, VALUES, changes="draws random numbers that slices can't draw alike")


@IN_ORDER
def test_nothing_is_sliced_then_if_it_has_to_be_exact():
    build, x = own(CHANGED["truncated"])
    keras.utils.set_random_seed(1)
    model = build()
    events = []
    with listening(events.append):
        legroom.fit(model, x, VALUES, batch_size=16, slice_size=5, exact=True, verbose=0)
    notes = [event.text for event in events if event.name == "note"]
    assert any("with exact=True the batch runs whole" in note for note in notes), notes


COMPILED = pytest.mark.on_tensorflow("PyTorch's compiler draws other numbers, which is said")


@pytest.mark.parametrize(
    "how", [{"run_eagerly": True}, pytest.param({"jit_compile": True}, marks=COMPILED)]
)
def test_eagerly_and_compiled(how):
    """Batches of 15 and 13: XLA draws otherwise for an even number of samples, see below."""
    masks = [lambda: layers.Dense(7), lambda: layers.Dropout(0.4), lambda: layers.GaussianNoise(1)]
    compare(flat(*masks, **how), X, VALUES, tolerance=1e-5, batch_size=15, epochs=2)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_two_passes_and_a_step_of_ones_own():
    """A GAN's second pass draws what its first pass drew."""

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = keras.Sequential([keras.Input((8,)), layers.Dropout(0.4), layers.Dense(4)])
            self.two = keras.Sequential([keras.Input((4,)), layers.GaussianNoise(0.3),
                                         layers.Dense(3)])  # fmt: skip
            self.first, self.second = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)

        def call(self, x, training=False):
            return self.two(self.one(x, training=training), training=training)

        def train_step(self, data):
            x, y = data
            for part, optimizer in ((self.one, self.first), (self.two, self.second)):
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                weights = part.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    def build():
        model = Twice()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    compare(build, X, LABELS, tolerance=1e-5)


def test_a_loss_scale_and_metrics_beside_it():
    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Dropout(0.3), layers.Dense(1)])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, "mse", metrics=["mae"])
        return model

    compare(build, X, VALUES, tolerance=1e-5)


KINDS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.not_on_jax("is about TensorFlow's draws; test_jax_draws has JAX's")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "rows",
    [(3, 2), *(pytest.param(rows, marks=pytest.mark.long) for rows in ((4,), (), (3, 3)))],
)
@pytest.mark.parametrize("samples", [13, 12])
def test_to_the_bit(compiled, rows, samples):
    seed = tf.constant([3, 9])

    def draw(shape):
        draws = tf.random.stateless_uniform, tf.random.stateless_normal
        return [draw(shape, seed, dtype=kind) for draw in draws for kind in KINDS]

    seen = [[Drawn(op, (n, *rows), "") for op in (UNIFORM, NORMAL)] for n in (4, 1, 3)]
    draws = read_draws(seen, [4, 1, 3])
    xla = ("odd" if samples % 2 else "even") if compiled else None

    @tf.function(jit_compile=compiled)
    def whole(unused):
        return draw((samples, *rows))

    def cut(samples, start):
        with cutting(draws, samples, start, xla=xla) as unknown:
            drawn = draw((samples, *rows))
        assert not unknown
        return drawn

    for first, last in ((0, 5), (5, 9), (9, 12)):
        part = tf.function(lambda start, n=last - first: cut(n, start), jit_compile=compiled)
        for one, other in zip(whole(tf.constant(0)), part(tf.constant(first, tf.int64)),
                              strict=True):  # fmt: skip
            np.testing.assert_array_equal(
                tf.cast(one[first:last], "float64"), tf.cast(other, "float64")
            )


@pytest.mark.parametrize(
    ("shapes", "op", "way"),
    [
        ([(4, 3), (1, 3), (3, 3)], UNIFORM, "rows"),
        ([(8, 3), (2, 3), (6, 3)], UNIFORM, "rows"),
        ([(4, 3), (4, 3), (4, 3)], UNIFORM, "same"),
        ([(), (), ()], NORMAL, "same"),
        ([(3, 4), (3, 1), (3, 3)], UNIFORM, "apart"),
        ([(4, 4), (1, 1), (3, 3)], UNIFORM, "apart"),
        ([(5, 3), (2, 3), (4, 3)], UNIFORM, "apart"),
        ([(4, 3), (1, 3), (3, 3)], "stateless_truncated_normal_v2", "apart"),
        ([(3,), (3,), (3,)], "stateless_truncated_normal_v2", "same"),
        ([(3,), (3,), (3,)], "random_uniform", "apart"),
        ([(4,), (1,), (3, 1)], UNIFORM, "apart"),
    ],
)
def test_how_a_draw_is_read(shapes, op, way):
    (draw,) = read_draws([[Drawn(op, s, "a")] for s in shapes], [4, 1, 3])
    assert draw.way == way


def test_draws_that_come_for_each_sample_are_apart_and_no_others():
    def drawn(n):
        each = [Drawn(UNIFORM, (8,), "each")] * n
        return [*each, Drawn(UNIFORM, (n, 8), "all")]

    draws = read_draws([drawn(4), drawn(1), drawn(3)], [4, 1, 3])
    assert {draw.scope: draw.way for draw in draws} == {"each": "apart", "all": "rows"}


@pytest.mark.not_on_torch("PyTorch's draws are cut by another test")
def test_recomputed_in_slices_too():
    """What is computed again draws again what it drew: the slice's rows."""
    states = []
    for slices in (False, True):
        keras.utils.set_random_seed(3)
        masks = [layers.Dense(7, "tanh"), layers.Dropout(0.4), layers.GaussianNoise(0.2)]
        model = keras.Sequential([keras.Input((8,)), *masks, layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        fitting = {"batch_size": 16, "epochs": 3, "verbose": 0, "shuffle": False}
        if slices:
            recompute_blocks(model, [[layer.name for layer in masks]])
            legroom.fit(model, X, VALUES, slice_size=5, **fitting)
        else:
            model.fit(X, VALUES, **fitting)
        states.append([np.array(variable) for variable in model.variables])
    assert max(relative(a, b) for a, b in zip(*states, strict=True)) < 1e-5
