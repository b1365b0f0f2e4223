"""On JAX a slice draws the rows that the whole batch would have drawn, to the bit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.core.events import listening

from .comparing import VALUES, X, compare

pytestmark = pytest.mark.on_jax("test_draws has the others'")

KINDS = ["float16", "float32"]


def draws(shape, seed):
    """All draws whose entries are functions of their own bits."""
    normal = [keras.random.normal(shape, 1.0, 2.0, dtype=kind, seed=seed) for kind in KINDS]
    uniform = [keras.random.uniform(shape, -1.0, 3.0, dtype=kind, seed=seed) for kind in KINDS]
    return [
        *normal,
        *uniform,
        keras.random.truncated_normal(shape, seed=seed),
        keras.random.randint(shape, 0, 1000, seed=seed),
        keras.random.dropout(keras.ops.ones(shape), 0.3, seed=seed),
    ]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "rows", [(3, 3), *(pytest.param(x, marks=pytest.mark.long) for x in ((), (2,), (1024,)))]
)
def test_to_the_bit(rows, compiled):
    import jax

    from legroom.backends.jax.slices.draws import Draws, drawing, draws_of

    def run(shape, rules=(), start=0):
        with drawing(Draws(rules, start)) as drawn:
            made = draws(shape, 7)
        return made, drawn.seen

    samples = 13
    whole, seen = run((samples, *rows))
    if compiled:  # XLA rounds otherwise where it fuses ops
        whole = jax.jit(lambda: run((samples, *rows))[0])()
    _, first = run((4, *rows))
    _, second = run((samples - 4, *rows))
    rules = draws_of(seen, [first, second], [4, samples - 4])
    assert {rule.way for rule in rules} == {"rows"}
    for begin, end in ((0, 5), (5, samples)):

        def part(start, length=end - begin):
            return run((length, *rows), rules, start)[0]

        made = (jax.jit(part) if compiled else part)(np.uint32(begin))
        for one, other in zip(whole, made, strict=True):
            np.testing.assert_array_equal(
                np.asarray(one[begin:end], "float64"), np.asarray(other, "float64")
            )


def noisy(draw):
    class Noise(layers.Layer):
        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(7)

        def call(self, x):
            return draw(x, self.generator)

    def build():
        model = keras.Sequential(
            [keras.Input((8,)), Noise(), layers.Dense(6, "tanh"), layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    return build


def test_truncated_normals_are_the_same():
    build = noisy(lambda x, g: x * keras.random.truncated_normal(keras.ops.shape(x), seed=g))
    compare(build, X, VALUES, tolerance=1e-5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: x * keras.random.gamma(keras.ops.shape(x), 2.0, seed=g),
        lambda x, g: x * keras.random.binomial(keras.ops.shape(x), 3.0, 0.5, seed=g),
        lambda x, g: x * keras.random.beta(keras.ops.shape(x), 2.0, 3.0, seed=g),
    ],
    ids=["gamma", "binomial", "beta"],
)
def test_draws_that_go_on_until_they_are_accepted_are_named(draw):
    said = "draws random numbers that slices can't draw alike"
    compare(noisy(draw), X, VALUES, changes=said)


def test_layers_are_named_where_jax_numbers_its_draws_otherwise():
    import jax

    def build():
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dropout(0.3, name="masks"), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        return model

    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", False)
    try:
        events = []
        with listening(events.append):
            legroom.fit(build(), X, VALUES, batch_size=16, slice_size=5, exact=True, verbose=0)
        notes = [event.text for event in events if event.name == "note"]
        assert any("masks" in note and "with exact=True" in note for note in notes), notes
        assert jax.config.jax_threefry_partitionable is False
    finally:
        jax.config.update("jax_threefry_partitionable", before)
