"""Models and steps of a user's own: what they vary is honoured, or runs whole and says so."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops, optimizers

import legroom

from .comparing import LABELS, VALUES, N, X, compare, regressor

EAGER = pytest.mark.parametrize("eager", [False, True])


class Net(keras.Model):
    """A small net to be given steps of its own."""

    def __init__(self, **extra):
        super().__init__()
        self.first, self.second = layers.Dense(6, "tanh"), layers.Dense(1)
        for name, value in extra.items():
            setattr(self, name, value)

    def call(self, x):
        return self.second(self.first(x))

    def gradients(self, data, variables=None):
        """The loss of a batch, and its gradients."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables if variables is None else variables
        return loss, list(zip(tape.gradient(loss, variables), variables, strict=True))


def made(kind, optimizer=None, eager=False, **extra):
    """A builder of a compiled model of this kind."""

    def build():
        model = kind(**extra)
        model.compile(
            optimizers.Adam(0.02) if optimizer is None else optimizer(), "mse", run_eagerly=eager
        )
        return model

    return build


class Counts(Net):
    """Goes by a counter of Python's: another layer each second step."""

    def train_step(self, data):
        self.calls += 1
        if not self.optimizer.built:
            self(data[0])
            self.optimizer.build(self.trainable_variables)
        layer = self.first if self.calls % 2 else self.second
        loss, pairs = self.gradients(data, layer.trainable_variables)
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_a_step_with_state_of_pythons():
    compare(made(Counts, eager=True, calls=0), X, VALUES, refused="self.calls")


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_a_step_with_state_of_pythons_in_a_graph():
    """Traced, the counter counts traces and not steps, and how many those are nobody promises."""
    model = made(Counts, eager=False, calls=0)()
    history = legroom.fit(model, X, VALUES, batch_size=16, epochs=2, verbose=0)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert ["self.calls" in note for note in notes] == [True], notes


class Lazy(Net):
    """Remembers something, but always the same."""

    def train_step(self, data):
        if self.width is None:
            self.width = int(data[0].shape[-1])
        loss, pairs = self.gradients(data)
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss / self.width}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@EAGER
def test_a_step_that_remembers_what_stays(eager):
    compare(made(Lazy, eager=eager, width=None), X, VALUES)


class Logs(Net):
    def train_step(self, data):
        loss, pairs = self.gradients(data)
        self.optimizer.apply_gradients(pairs)
        self.seen.append(float(loss))
        if len(self.seen) > 2 and self.seen[-1] > 0.5 * self.seen[0]:
            self.optimizer.learning_rate = 0.9 * self.optimizer.learning_rate
        return {"loss": loss}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_a_step_that_keeps_a_list():
    compare(made(Logs, eager=True, seen=[]), X, VALUES, refused="self.seen")


class Accumulates(Net):
    """Gradients added up by hand, applied every second step in a branch of the graph."""

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 6))
        self.built = True
        self.sums = [tf.Variable(tf.zeros(v.shape)) for v in self.trainable_variables]
        self.count = tf.Variable(0)

    def train_step(self, data):
        loss, pairs = self.gradients(data)
        self.count.assign_add(1)
        for total, (gradient, _) in zip(self.sums, pairs, strict=True):
            total.assign_add(gradient)
        tf.cond(self.count % 2 == 0, self.flush, lambda: None)
        return {"loss": loss}

    def flush(self):
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_an_apply_in_a_branch():
    def build():
        model = made(Accumulates)()
        model.build((None, 8))
        model.optimizer.build(model.trainable_variables)
        return model

    compare(build, X, VALUES, refused="in a loop or a branch")


class TwoGroups(Net):
    """One optimizer for two groups of variables, one after the other."""

    def train_step(self, data):
        if not self.optimizer.built:
            self(data[0])
            self.optimizer.build(self.trainable_variables)
        loss, pairs = self.gradients(data, self.first.trainable_variables)
        self.optimizer.apply_gradients(pairs)
        _, pairs = self.gradients(data, self.second.trainable_variables)
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@EAGER
def test_one_optimizer_for_two_groups(eager):
    compare(made(TwoGroups, eager=eager), X, VALUES)


class Perturbs(Net):
    """Sharpness-aware: goes up the gradient, takes another there, and goes back."""

    def train_step(self, data):
        loss, pairs = self.gradients(data)
        norm = tf.linalg.global_norm([g for g, _ in pairs])
        for gradient, variable in pairs:
            variable.assign_add(0.05 * gradient / norm)
        _, there = self.gradients(data)
        for gradient, variable in pairs:
            variable.assign_sub(0.05 * gradient / norm)
        self.optimizer.apply_gradients(there)
        return {"loss": loss}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@EAGER
def test_a_step_that_moves_its_weights_and_back(eager):
    compare(
        made(Perturbs, lambda: optimizers.SGD(0.05), eager=eager), X, VALUES,
        changes="the loss of the step",
    )  # fmt: skip


MIXES = {"changes": "masked mixes the samples"}


@pytest.mark.parametrize(
    ("least", "found"),
    [(-0.5, MIXES), (0.3, MIXES), (0.9, {"refused": "means or sums can't be told"})],
)
def test_a_loss_over_what_counts_is_never_taken_for_a_sum(least, found):
    """Divided by its own mask: of a slice nothing may count, and then a mean looks like a sum."""
    mask = (X[:, :1] >= least).astype("float32")

    def masked(y, made):
        counts = y[:, 1:]
        return keras.ops.sum(keras.ops.square(y[:, :1] - made) * counts) / (
            keras.ops.sum(counts) + 1e-8
        )

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(optimizers.SGD(0.05), masked)
        return model

    compare(build, X, np.concatenate([VALUES, mask], axis=1), **found)


class OwnLoss(Net):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean((y - y_pred) ** 2) + 0.1 * ops.mean(ops.abs(y_pred))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "twice": 2.0}


@EAGER
def test_a_loss_and_metrics_of_ones_own(eager):
    compare(made(OwnLoss, eager=eager), X, VALUES)


class Streak(keras.metrics.Metric):
    """Counts batches: a state that is not a sum over samples."""

    def __init__(self):
        super().__init__(name="streak")
        self.batches = self.add_weight(shape=(), initializer="zeros", name="batches")
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.batches.assign_add(1.0)
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.largest / self.batches


@EAGER
def test_a_metric_with_state_of_its_own(eager):
    compare(lambda: regressor(metrics=[Streak()], run_eagerly=eager), X, VALUES)


class WritesInCall(layers.Layer):
    """Counts its calls, and keeps a mean of what it saw."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), trainable=False, initializer="zeros")
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return x


@EAGER
def test_a_layer_that_writes_in_call(eager):
    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(4), WritesInCall(name="counting"),
                                  layers.Dense(1)])  # fmt: skip
        model.compile("adam", "mse", run_eagerly=eager)
        return model

    compare(build, X, VALUES, changes="counting")


@pytest.mark.on_tensorflow("Keras on PyTorch can't train it: its state is written in place")
def test_a_stateful_rnn():
    def build():
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(14, 4, 2)),
                layers.GRU(4, stateful=True, name="stateful"),
                layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
        return model

    compare(build, X.reshape(N, 4, 2), VALUES, batch_size=14, refused="runs whole")


def test_two_outputs_one_without_a_loss():
    def build():
        inputs = keras.Input((8,))
        hidden = layers.Dense(6, "relu")(inputs)
        model = keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(3)(hidden)])
        model.compile("adam", ["mse", None])
        return model

    compare(build, X, VALUES)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_python_in_the_loss():
    def loss(y_true, y_pred):
        weights = tf.py_function(lambda y: np.abs(y.numpy()) + 1.0, [y_true], tf.float32)
        weights.set_shape(y_true.shape)
        return tf.reduce_mean(weights * (y_true - y_pred) ** 2, axis=-1)

    compare(lambda: regressor(loss=loss), X, VALUES, said="calls Python functions")


def test_a_learning_rate_that_callbacks_change():
    class Rate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.01 * (1 + batch)

    def callbacks():
        return [
            Rate(),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate),
        ]

    compare(regressor, X, VALUES, callbacks=callbacks)


NOT_FROZEN = pytest.mark.not_on_jax("Keras on JAX can't train on with other variables")


@NOT_FROZEN
@pytest.mark.parametrize("batch", [0, 1])
def test_a_callback_that_freezes_a_layer(batch):
    """Traced, a step goes on as it was traced, also in slices that are traced later."""

    class Freezes(keras.callbacks.Callback):
        def on_train_batch_end(self, number, logs=None):
            if number == batch:
                self.model.layers[0].trainable = False

    compare(regressor, X, VALUES, callbacks=lambda: [Freezes()])


@pytest.mark.parametrize("recompiles", [True, pytest.param(False, marks=NOT_FROZEN)])
def test_freezing_between_fits(recompiles):
    def fit(model, run):
        run()
        model.layers[0].trainable = False
        if recompiles:
            model.compile("adam", "mse")
        run()
        model.layers[0].trainable = True
        model.compile("sgd", "mse")
        return run()

    compare(regressor, X, VALUES, fit=fit, epochs=2)


def test_train_on_batch_between_fits():
    def fit(model, run):
        run(epochs=1)
        for start in (0, 8):
            model.train_on_batch(X[start : start + 8], VALUES[start : start + 8])
        return run(epochs=1)

    compare(regressor, X, VALUES, fit=fit)


@pytest.mark.not_on_jax("Keras on JAX wants an optimizer for each model")
def test_two_models_that_share_an_optimizer():
    shared = {}

    def build():
        model, other = regressor(optimizers.Adam(0.02)), regressor("sgd")
        model.optimizer.build(model.trainable_variables + other.trainable_variables)
        other.compile(model.optimizer, "mse")
        shared[id(model)] = other
        return model

    def fit(model, run):
        run(epochs=1)
        other = shared[id(model)]
        fit_other = getattr(run, "other", None) or other.fit
        fit_other(X, VALUES, batch_size=16, verbose=0, shuffle=False)
        return run(epochs=1)

    compare(build, X, VALUES, fit=fit)


@pytest.mark.parametrize(
    "mode",
    ["float8", "lora", "int8 and lora", pytest.param("int8", marks=pytest.mark.long)],
)
def test_quantized_layers_and_lora(mode):
    def build():
        model = keras.Sequential(
            [
                keras.Input((16,)),
                layers.Dense(16, "relu", name="a"),
                layers.EinsumDense("ab,bc->ac", 8, bias_axes="c", name="b"),
                layers.Dense(1),
            ]
        )
        if mode != "lora":
            model.quantize(mode.partition(" ")[0])
        if "lora" in mode:
            model.layers[0].enable_lora(2)
            model.layers[1].enable_lora(2)
        model.compile(optimizers.Adam(0.01), "mse")
        return model

    refused = "overwritten with their gradients" if mode == "float8" else None
    compare(build, np.concatenate([X, X], 1), VALUES, refused=refused)


@pytest.mark.parametrize("optimizer", [
    lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.05), initial_scale=1e38,
                                          dynamic_growth_steps=2),
    lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.05, use_ema=True, ema_overwrite_frequency=2), dynamic_growth_steps=3),
])  # fmt: skip
def test_loss_scales_that_overflow(optimizer):
    """The first scale overflows float32: those steps only lower the scale."""
    compare(lambda: regressor(optimizer()), X, 30 * VALUES, epochs=4)


@pytest.mark.on_tensorflow("Keras runs one step an execution on PyTorch")
def test_several_steps_an_execution_with_an_own_step():
    class Own(Net):
        def train_step(self, data):
            loss, pairs = self.gradients(data)
            self.optimizer.apply_gradients(pairs)
            return {"loss": loss}

    def build():
        model = Own()
        model.compile("adam", "mse", steps_per_execution=2)
        return model

    compare(build, X, VALUES)


def test_a_rate_schedule_with_variables_of_its_own():
    class Warms(optimizers.schedules.LearningRateSchedule):
        def __init__(self):
            self.factor = keras.Variable(0.1, trainable=False)

        def __call__(self, step):
            return self.factor / (1.0 + ops.cast(step, "float32"))

    compare(lambda: regressor(optimizers.SGD(Warms())), X, VALUES)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_constraints_and_variables_of_tensorflow():
    class Scaled(Net):
        """Has a `tf.Variable` that Keras does not train, and writes to it."""

        def train_step(self, data):
            loss, pairs = self.gradients(data)
            self.optimizer.apply_gradients(pairs)
            self.steps.assign_add(1)
            return {"loss": loss}

    compare(
        lambda: made(Scaled, steps=tf.Variable(0, trainable=False))(), X, VALUES,
        refused="it writes a variable of its own",
    )  # fmt: skip


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_losses_that_couple_samples_run_whole_where_that_is_asked():
    def loss(y_true, y_pred):
        return (tf.reduce_mean(y_pred) - tf.reduce_mean(y_true)) ** 2

    keras.utils.set_random_seed(3)
    plain = regressor(loss=loss)
    plain.fit(X, VALUES, batch_size=14, verbose=0, shuffle=False)
    keras.utils.set_random_seed(3)
    model = regressor(loss=loss)
    history = legroom.fit(model, X, VALUES, batch_size=14, verbose=0, shuffle=False, exact=True,
                          slice_size=5)  # fmt: skip
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert history.legroom.slice_size == 14


@EAGER
def test_a_classifier_with_class_weights_and_a_frozen_layer(eager):
    def build():
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(6, trainable=False), layers.Dense(3, "softmax")]
        )
        model.compile("adam", losses.SparseCategoricalCrossentropy(), run_eagerly=eager)
        return model

    compare(build, X, LABELS, class_weight={0: 1.0, 1: 2.0, 2: 0.5})
