"""Hand-written steps whose arguments, variables or inner functions vary from call to call."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import legroom
from legroom.core.events import listening

from .comparing import VALUES, X, compare, compare_loops

pytestmark = pytest.mark.on_tensorflow("is about `tf.function`")

BATCHES = [
    (tf.constant(X[start : start + 14]), tf.constant(VALUES[start : start + 14]))
    for start in (0, 14)
]
KINDS = pytest.mark.parametrize("function", [tf.function, lambda f: f], ids=["traced", "eager"])


def net() -> keras.Model:
    """Two layers, to be trained one at a time."""
    return keras.Sequential([keras.Input((8,)), layers.Dense(5, "tanh"), layers.Dense(1)])


def update(model, optimizer, variables, x, y):
    """One update of some of a model's variables."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


@KINDS
@pytest.mark.parametrize("names", [(0, 1), ("first", "second"), (0.0, 1.5), (True, False)])
def test_an_argument_chooses_the_variables(function, names):
    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

        @decorate
        @function
        def step(which, x, y):
            layer = model.layers[names.index(which)]
            return update(model, optimizer, layer.trainable_variables, x, y)

        for x, y in BATCHES * 2:
            for which in names:
                step(which, x, y)
        return [*model.variables, *optimizer.variables]

    compare_loops(train)


@KINDS
def test_an_argument_chooses_the_optimizer_and_how_often(function):
    def train(decorate):
        model = net()
        both = [optimizers.SGD(0.05), optimizers.Adam(0.05)]
        for optimizer in both:
            optimizer.build(model.trainable_variables)

        @decorate
        @function
        def step(number, x, y):
            loss = update(model, both[number % 2], model.trainable_variables, x, y)
            if number % 3 == 0:
                update(model, both[1], model.trainable_variables, x, y)
            return loss

        for number, (x, y) in enumerate(BATCHES * 3):
            step(number, x, y)
        return [*model.variables, *both[0].variables, *both[1].variables]

    compare_loops(train)


@KINDS
def test_an_argument_is_a_mean_or_a_sum(function):
    def train(decorate):
        model, optimizer = net(), optimizers.SGD(0.01)

        @decorate
        @function
        def step(x, y, power=1, total=False):
            with tf.GradientTape() as tape:
                loss = tf.abs(model(x) - y) ** power
                loss = tf.reduce_sum(loss) if total else tf.reduce_mean(loss)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        for x, y in BATCHES:
            step(x, y)
            step(x, y, total=True)
            step(x, y, power=2)
        return model.variables

    compare_loops(train)


@KINDS
def test_a_variable_as_an_argument(function):
    def train(decorate):
        weights = [tf.Variable(tf.ones((8, 1))) for _ in range(2)]
        optimizer = optimizers.SGD(0.1)
        optimizer.build(weights)

        @decorate
        @function
        def step(weight, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - y) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            return loss

        for x, y in BATCHES:
            for weight in weights:
                step(weight, x, y)
        return weights

    compare_loops(train)


@KINDS
def test_one_optimizer_for_two_groups_in_turn(function):
    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

        @decorate
        @function
        def step(x, y):
            loss = update(model, optimizer, model.layers[0].trainable_variables, x, y)
            update(model, optimizer, model.layers[1].trainable_variables, x, y)
            return loss

        for x, y in BATCHES * 2:
            step(x, y)
        return [*model.variables, *optimizer.variables]

    compare_loops(train)


def test_groups_of_variables_that_take_turns_by_a_counter_of_pythons():
    """An eager step with state of Python's own."""

    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)
        calls = {"made": 0}

        @decorate
        def step(x, y):
            calls["made"] += 1
            layer = model.layers[calls["made"] % 2]
            return update(model, optimizer, layer.trainable_variables, x, y)

        for x, y in BATCHES * 2:
            step(x, y)
        return [*model.variables, *optimizer.variables, np.array(calls["made"])]

    compare_loops(train, refused="calls")


@pytest.mark.parametrize("traced_before", [False, True])
@KINDS
def test_a_step_that_calls_a_function_that_applies(function, traced_before):
    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

        @tf.function
        def inner(x, y):
            return update(model, optimizer, model.trainable_variables, x, y)

        if traced_before:
            inner(*BATCHES[0])

        @decorate
        @function
        def step(x, y):
            return inner(x, y)

        for x, y in BATCHES * 2:
            step(x, y)
        inner(*BATCHES[0])  # what was called inside is as it was
        return [*model.variables, *optimizer.variables]

    compare_loops(train)


@KINDS
def test_a_step_that_computes_gradients_in_a_function(function):
    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)

        @tf.function
        def gradients(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            return loss, tape.gradient(loss, model.trainable_variables)

        @tf.function
        def apply(found):
            optimizer.apply(found, model.trainable_variables)

        @decorate
        @function
        def step(x, y):
            loss, found = gradients(x, y)
            apply(found)
            return loss

        for x, y in BATCHES * 2:
            step(x, y)
        return [*model.variables, *optimizer.variables]

    compare_loops(train)


@KINDS
def test_a_function_that_writes_and_one_that_does_not(function):
    """Moving statistics in a function of their own, and a loss in another."""

    def train(decorate):
        model, optimizer = net(), optimizers.SGD(0.05)
        seen = tf.Variable(0.0)

        @tf.function
        def note(x):
            seen.assign_add(tf.reduce_mean(x))

        @tf.function
        def loss_of(x, y):
            return tf.reduce_mean((model(x) - y) ** 2)

        @decorate
        @function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(x, y)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            note(x)
            return loss

        for x, y in BATCHES * 2:
            step(x, y)
        return [*model.variables, seen]

    compare_loops(train, refused="it writes a variable of its own")


def test_a_step_in_a_loop_of_functions():
    """Several updates in one call, by AutoGraph."""

    def train(decorate):
        model, optimizer = net(), optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

        @decorate
        @tf.function
        def step(x, y):
            loss = 0.0
            for _ in tf.range(2):
                loss = update(model, optimizer, model.trainable_variables, x, y)
            return loss

        for x, y in BATCHES:
            step(x, y)
        return [*model.variables, *optimizer.variables]

    compare_loops(train, refused="loop")


def test_two_models_with_one_optimizer():
    def train(decorate):
        models, optimizer = [net(), net()], optimizers.Adam(0.05)
        optimizer.build([v for model in models for v in model.trainable_variables])

        @decorate
        @tf.function
        def step(model, x, y):
            return update(model, optimizer, model.trainable_variables, x, y)

        for x, y in BATCHES * 2:
            for model in models:
                step(model, x, y)
        return [*models[0].variables, *models[1].variables, *optimizer.variables]

    compare_loops(train)


def test_other_batch_sizes_and_shapes_are_traced_by_the_same_step():
    def train(decorate):
        model, optimizer = net(), optimizers.Adam(0.05)

        @decorate
        @tf.function
        def step(x, y, weight=None):
            with tf.GradientTape() as tape:
                loss = (model(x) - y) ** 2
                loss = tf.reduce_mean(loss if weight is None else weight * loss)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        for size in (16, 12, 16):
            x, y = tf.constant(X[:size]), tf.constant(VALUES[:size])
            step(x, y)
            step(x, y, tf.abs(x[:, :1]))
            step(X[:size], VALUES[:size], weight=np.abs(X[:size, :1]))
        return [*model.variables, *optimizer.variables]

    compare_loops(train)


def test_fit_is_guarded_after_a_watch_that_it_began_in():
    script_model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    script_model.compile("sgd", "mse")
    with legroom.watch(quiet=True):
        legroom.fit(script_model, X, VALUES, batch_size=14, slice_size=5, verbose=0)
    history = legroom.fit(script_model, X, VALUES, batch_size=14, slice_size=5, verbose=0)
    assert history.legroom.slice_size == 5
    compare(lambda: _compiled(net()), X, VALUES, epochs=1)


def _compiled(model):
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("refused", [False, True])
def test_results_are_put_together_as_the_user_says_if_slices_run(refused):
    model, optimizer, steps = net(), optimizers.SGD(0.05), tf.Variable(0)
    optimizer.build(model.trainable_variables)

    @legroom.step(slice_size=5, returns=("mean", "last"))
    @tf.function
    def step(x, y):
        if refused:
            steps.assign_add(1)  # which slices would do several times
        return update(model, optimizer, model.trainable_variables, x, y), tf.reduce_mean(x)

    x, y = BATCHES[0]
    _, mean = step(x, y)
    np.testing.assert_allclose(mean, tf.reduce_mean(x if refused else x[10:]), rtol=1e-5)


@pytest.mark.parametrize("regularized", [True, False])
def test_a_sum_over_samples_with_a_regularizer_beside_it(regularized):
    """TensorFlow's tutorials divide by a batch size of their own, and add the model's losses."""
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    weights = []
    for decorate in (lambda step: step, legroom.step(slice_size=4)):
        keras.utils.set_random_seed(1)
        regularizer = "l2" if regularized else None
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(1, kernel_regularizer=regularizer)]
        )
        optimizer = keras.optimizers.SGD(0.05)

        @decorate
        @tf.function
        def step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                each = tf.reduce_sum((model(x) - y) ** 2, axis=-1)
                loss = tf.nn.compute_average_loss(each, global_batch_size=32)
                loss += tf.add_n([*model.losses, 0.0])
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        said = []
        with listening(lambda event, said=said: said.append(event.text)):
            step(tf.constant(x), tf.constant(x[:, :1]))
        weights.append(model.get_weights())
    refused = any("neither means nor sums" in text for text in said)
    assert refused == regularized
    for plain, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-6)
