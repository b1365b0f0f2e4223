"""Several steps in one execution: the same training as Keras's, in one function once it is safe."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom
from legroom.backends.tensorflow.step import executions, step_loop
from legroom.backends.tensorflow.step.step import Step
from legroom.backends.tensorflow.step.traits import Traits

pytestmark = pytest.mark.on_tensorflow("Keras runs one step an execution on PyTorch")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(1003, 8)).astype("float32")
LABELS = RNG.integers(0, 3, 1003)
WEIGHTS = RNG.uniform(0.2, 2.0, 1003).astype("float32")


@pytest.fixture(autouse=True)
def any_pace(monkeypatch):
    """Machines are slow at times; what is compared here is not their pace."""
    monkeypatch.setattr(executions, "_SLOW", float("inf"))


@pytest.fixture
def looped(monkeypatch):
    """The steps that were taken at once, one number for each time."""
    taken, original = [], step_loop.StepLoop.__call__

    def call(self, *args):
        ran = original(self, *args)
        taken.append(ran.steps)
        return ran

    monkeypatch.setattr(step_loop.StepLoop, "__call__", call)
    return taken


def network():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax"),
        ]
    )


def classifier(steps, **options):
    model = network()
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 10, 0.8)
    model.compile(
        options.pop("optimizer", None) or keras.optimizers.AdamW(rate, weight_decay=0.02),
        "sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
        weighted_metrics=["sparse_categorical_crossentropy"],
        steps_per_execution=steps,
        **options,
    )
    return model


class Seen(keras.callbacks.Callback):
    """What a callback sees at the end of each execution, and the sum of the weights."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        weights = sum(float(np.sum(np.abs(w))) for w in self.model.get_weights())
        self.ends.append((batch, dict(logs), weights))


def state(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def both(build, source, *, rtol=1e-6, **options):
    """Train plain and guarded, and compare all that there is."""
    seen = []
    for guarded in (False, True):
        keras.utils.set_random_seed(11)
        model, callback = build(), Seen()
        data = source()
        x, rest = (data[0], data[1:]) if isinstance(data, tuple) else (data, ())
        fit = (lambda *a, m=model, **o: legroom.fit(m, *a, **o)) if guarded else model.fit
        history = fit(x, *rest, verbose=0, epochs=3, callbacks=[callback], **options)
        seen.append((state(model), history.history, callback.ends))
    (plain, history, ends), (other, other_history, other_ends) = seen
    for one, two in zip(plain, other, strict=True):
        np.testing.assert_allclose(two, one, rtol=rtol, atol=1e-7)
    assert other_history.keys() == history.keys()
    for key, values in history.items():
        assert other_history[key] == pytest.approx(values, rel=1e-5)
    assert [batch for batch, *_ in other_ends] == [batch for batch, *_ in ends]
    for (_, logs, total), (_, other_logs, other_total) in zip(ends, other_ends, strict=True):
        assert list(other_logs) == list(logs)
        assert other_logs == pytest.approx(logs, rel=1e-5)
        assert other_total == pytest.approx(total, rel=1e-5)
    return plain


@pytest.mark.parametrize("steps", [2, 7, 30])  # above 31, old versions of Keras refuse
def test_arrays(steps, looped):
    both(
        lambda: classifier(steps), lambda: (X, LABELS), batch_size=10, sample_weight=WEIGHTS,
        validation_split=0.2,
    )  # fmt: skip
    assert max(looped) >= steps - 1  # where a batch of another size is not among them


@pytest.mark.parametrize("steps", [2, 7, 30])  # above 31, old versions of Keras refuse
def test_a_pipeline_with_class_weights(steps, looped):
    def source():
        return tf.data.Dataset.from_tensor_slices((X, LABELS)).shuffle(200, seed=3).batch(10)

    both(lambda: classifier(steps), source, class_weight={0: 0.5, 1: 1.0, 2: 2.0})
    assert looped


@pytest.mark.parametrize("steps", [2, 7, 30])  # above 31, old versions of Keras refuse
@pytest.mark.parametrize("batches", [70, 101])
def test_data_whose_length_nobody_knows(steps, batches, looped):
    def source():
        data = tf.data.Dataset.from_tensor_slices((X, LABELS, WEIGHTS)).batch(10).take(batches)
        return data.filter(lambda x, y, weights: tf.constant(True))

    both(lambda: classifier(steps), source)
    assert looped


def test_an_iterator_that_is_used_for_all_epochs(looped):
    def source():
        return tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(10).repeat()

    both(lambda: classifier(7), source, steps_per_epoch=25)
    assert looped


def test_a_generator(looped):
    def source():
        def batches():
            while True:
                for start in range(0, 1003, 10):
                    yield X[start : start + 10], LABELS[start : start + 10]

        return batches()

    both(lambda: classifier(7), source, steps_per_epoch=30)
    assert looped


def test_batches_of_many_sizes(looped):
    def source():
        rng = np.random.default_rng(2)
        sizes = rng.permutation(np.repeat([4, 9, 10], 12))
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

        def batches():
            for start, size in zip(starts, sizes, strict=True):
                yield X[start : start + size], LABELS[start : start + size]

        spec = (tf.TensorSpec((None, 8)), tf.TensorSpec((None,), tf.int64))
        return tf.data.Dataset.from_generator(batches, output_signature=spec)

    both(lambda: classifier(6), source)
    assert sum(looped)


def test_compiled(looped):
    both(lambda: classifier(7, jit_compile=True), lambda: (X, LABELS), batch_size=10, rtol=1e-4)
    assert looped


def test_eager_steps_are_run_one_by_one(looped):
    both(lambda: classifier(3, run_eagerly=True), lambda: (X[:103], LABELS[:103]), batch_size=10)
    assert not looped


def test_loss_scale(looped):
    def build():
        inner = keras.optimizers.Adam(0.01)
        return classifier(5, optimizer=keras.optimizers.LossScaleOptimizer(inner, 2.0**10))

    both(build, lambda: (X, LABELS), batch_size=10)
    assert looped


class TwoOptimizers(keras.Model):
    """Applies two optimizers in turn: its old state is kept while a step runs."""

    def __init__(self):
        super().__init__()
        self.one, self.two = layers.Dense(8), layers.Dense(1)
        self.other = keras.optimizers.Adam(0.02)

    def call(self, x):
        return self.two(self.one(x))

    def train_step(self, data):
        x, y = data
        for layer, optimizer in ((self.one, self.optimizer), (self.two, self.other)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss, "distance": y - 1.0}


def test_a_step_that_keeps_its_old_state_and_returns_samples(looped):
    def build():
        model = TwoOptimizers()
        model.compile(keras.optimizers.SGD(0.01), steps_per_execution=4)
        return model

    seen = []
    for guarded in (False, True):
        keras.utils.set_random_seed(11)
        model = build()
        fit = (lambda *a, m=model, **o: legroom.fit(m, *a, **o)) if guarded else model.fit
        fit(X[:200], X[:200, :1], batch_size=10, epochs=2, verbose=0, shuffle=False)
        seen.append(model.get_weights())
    for one, two in zip(*seen, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-6)
    assert looped


def test_evaluation(looped):
    results = []
    for guarded in (False, True):
        keras.utils.set_random_seed(11)
        model = classifier(7)
        if guarded:
            legroom.guard(model)
        results.append([model.evaluate(X, LABELS, batch_size=10, verbose=0) for _ in range(2)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
    assert looped


# What is left after a failure.


class Shared(keras.layers.Layer):
    """Draws twice from one seed, so that the first draw is written before the second is read."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(4)

    def call(self, x):
        for _ in range(2):
            x = x + 0.1 * keras.random.normal(keras.ops.shape(x), seed=self.seed)
        return x


def failing(kept):
    """A model that has a metric, and a step of it that fails on batches with a number above 100."""
    inputs = keras.Input((8,))
    x = layers.Dropout(0.3, seed=1)(layers.BatchNormalization()(inputs))
    x = layers.Dense(3)(Shared()(x) if kept else x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])

    def call(data):
        x, y = data
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0)]):
            x = tf.identity(x)
        return model.train_step((x, y))

    return model, call


@pytest.mark.parametrize("kept", [False, True], ids=["held back", "kept"])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_failure_in_the_middle_leaves_the_steps_before_it(kept, at):
    x = X[:60].copy()
    x[10 * at + 4, 2] = 1000.0
    y = np.zeros((60, 3), "float32")
    states = []
    for in_loop in (False, True):
        keras.utils.set_random_seed(3)
        model, call = failing(kept)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
        step = Step(Traits(call, spec=data.element_spec), model=model)
        if in_loop:
            batch = next(iter(data))
            step.prepare(batch)
            loop, iterator = step.loop(), iter(data)
            ran = loop(iterator, 6, [10])
            assert isinstance(ran.error, tf.errors.InvalidArgumentError)
            assert ran.steps == at
            np.testing.assert_array_equal(ran.left[0], x[10 * at : 10 * at + 10])
            states.append(state(model))
            # The rest of the data is still there.
            after = loop(iterator, 6, [10])
            assert (after.steps, after.error, after.left) == (5 - at, None, None)
        else:
            for number, batch in enumerate(data):
                if number < at:
                    step.run(batch, None)
                elif number == at:
                    step.prepare(batch)
            states.append(state(model))
    for one, two in zip(*states, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-7)


def test_an_error_of_the_data_comes_out_as_it_is():
    def parse(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(y, tf.constant(90, tf.int64))]):
            return x, y % 3

    numbers = np.arange(103)
    for guarded in (False, True):
        model = classifier(4)
        data = tf.data.Dataset.from_tensor_slices((X[:103], numbers)).map(parse).batch(5)
        fit = (lambda *a, m=model, **o: legroom.fit(m, *a, **o)) if guarded else model.fit
        with pytest.raises(tf.errors.InvalidArgumentError):
            fit(data, verbose=0)
        if guarded:
            assert int(model.optimizer.iterations) == 18  # all whose batches are there
