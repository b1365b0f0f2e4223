"""Slices give the update of the whole batch: weights and History against plain `fit`.

Every case trains twice from the same numbers, plain and with slices fixed by hand at a size that
divides nothing evenly, and compares.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops, optimizers

import legroom
from legroom.backends.tensorflow.commit.units import adds_rows_up
from legroom.core.events import listening

RNG = np.random.default_rng(0)
N = 44  # batches of 16, 16 and 12
X = RNG.normal(size=(N, 8)).astype("float32")
LABELS = RNG.integers(0, 3, N)
VALUES = RNG.normal(size=(N, 1)).astype("float32")
WEIGHTS = RNG.random(N).astype("float32")
TOKENS = RNG.integers(1, 30, (N, 6))
for row in TOKENS:
    row[RNG.integers(1, 7) :] = 0
ONE_STEP = pytest.mark.on_tensorflow("Keras runs one step an execution on PyTorch")
LOOPS = pytest.mark.not_on_jax("op by op, JAX compiles each loop again: test_reductions is eager")
ON_JAX = keras.backend.backend() == "jax"
MEANS = pytest.mark.since_keras("3.7", "has no mean over weights")


def classifier(**compiling):
    """A small classifier."""
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(3, "softmax")]
    )
    options = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy",
               "metrics": ["accuracy"], **compiling}  # fmt: skip
    model.compile(**options)
    return model


def regressor(loss="mse", optimizer="adam", metrics=("mae",), **compiling):
    """A small regression."""
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(1)]
    )
    model.compile(optimizer, loss, metrics=list(metrics), **compiling)
    return model


def compare(build, *data, tolerance=1e-4, slice_size=5, metrics=True, epochs=2, **fitting):
    """Train plain and in slices, and compare weights, optimizer, metrics and History."""
    trained, histories = [], []
    options = {"batch_size": 16, "epochs": epochs, "verbose": 0, "shuffle": False, **fitting}
    for guarded in (False, True):
        keras.utils.set_random_seed(3)
        model = build()
        given = {key: value() if callable(value) else value for key, value in options.items()}
        source = [piece() if callable(piece) else piece for piece in data]
        if guarded:
            history = legroom.fit(model, *source, slice_size=slice_size, **given)
        else:
            history = model.fit(*source, **given)
        trained.append(model)
        histories.append(history)
    plain, sliced = trained
    for one, other in zip(plain.variables, sliced.variables, strict=True):
        if "seed" not in one.path:
            assert relative(one, other) <= tolerance, one.path
    if plain.optimizer is not None:
        counts = [int(np.array(model.optimizer.iterations)) for model in trained]
        assert counts[0] == counts[1]
        for one, other in zip(plain.optimizer.variables, sliced.optimizer.variables, strict=True):
            assert relative(one, other) <= 10 * tolerance, one.path
    assert histories[0].history.keys() == histories[1].history.keys()
    if metrics:
        for key, values in histories[0].history.items():
            np.testing.assert_allclose(
                values, histories[1].history[key], rtol=10 * tolerance, atol=1e-6, err_msg=key
            )
    report = histories[1].legroom
    assert report.samples_lost == 0
    assert report.slice_size == slice_size
    return histories[1]


def relative(one, other) -> float:
    """The largest difference, on the variable's own scale."""
    one, other = one.numpy().astype(float), other.numpy().astype(float)
    return float(np.abs(one - other).max(initial=0) / max(1e-3, np.abs(one).max(initial=0)))


@pytest.fixture(autouse=True)
def float32():
    """Every case begins in plain float32."""
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "reduction",
    [
        "sum_over_batch_size",
        "sum",
        pytest.param(None, marks=pytest.mark.on_tensorflow("PyTorch wants one number for a loss")),
        pytest.param("mean", marks=MEANS),
        pytest.param("mean_with_sample_weight", marks=MEANS),
    ],
)
def test_reductions(reduction, eager):
    compare(
        lambda: regressor(losses.MeanSquaredError(reduction=reduction), run_eagerly=eager),
        X, VALUES, sample_weight=None if reduction is None else WEIGHTS,
    )  # fmt: skip


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=LOOPS)])
def test_masked_loss(eager):
    def build():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(30, 8, mask_zero=True),
                layers.LSTM(8, return_sequences=True),
                layers.Dense(3, "softmax"),
            ]
        )
        model.compile(
            "sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=eager
        )
        return model

    compare(build, TOKENS, RNG.integers(0, 3, (N, 6)))


OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda: optimizers.Nadam(0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "adamax": lambda: optimizers.Adamax(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.05),
    "lamb": lambda: optimizers.Lamb(0.01),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "clipnorm": lambda: optimizers.SGD(0.5, clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: optimizers.SGD(0.5, global_clipnorm=0.05),
    "ema": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "ema_overwrite": lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss_scale": lambda: optimizers.SGD(0.05, loss_scale_factor=128.0),
    "dynamic_scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01),
                                                           dynamic_growth_steps=2),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    compare(lambda: classifier(optimizer=OPTIMIZERS[name]()), X, LABELS)


@pytest.mark.parametrize(
    ("optimizer", "entries", "eager"),
    [
        ("sgd", 30, False),  # rows are added up in a table: a batch has more of them than it
        ("adam", 30, False),
        ("adam", 30, True),
        ("ema", 30, False),
        ("rmsprop", 30, False),
        ("adam", 1000, False),  # rows are kept: the table is larger
        ("adadelta", 30, False),  # rows are kept: their sums would be another update
        ("clipnorm", 30, False),
        ("dynamic_scale", 30, False),
        ("adagrad", 30, False),  # reads the sums that it has just added rows to
        ("adagrad", 1000, True),
        ("momentum", 30, False),
        ("ftrl", 30, False),
        ("adafactor", 30, False),
    ],
)
def test_sparse_gradients(optimizer, entries, eager):
    def build():
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(entries, 8),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3, "softmax"),
            ]
        )
        model.compile(OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy", run_eagerly=eager)
        return model

    compare(build, TOKENS, LABELS)


@pytest.mark.on_tensorflow("is about sparse gradients of TensorFlow")
def test_what_optimizers_take_of_sparse_rows():
    takes = {}
    for name in ("sgd", "adam", "rmsprop", "clipnorm", "adadelta", "nadam", "dynamic_scale"):
        optimizer = OPTIMIZERS[name]()
        optimizer.build([keras.Variable(np.ones((2, 2), "float32"))])
        takes[name] = adds_rows_up(optimizer)
    assert takes == {
        "sgd": (), "adam": ("square",), "rmsprop": ("square",),
        "clipnorm": None, "adadelta": None, "nadam": None, "dynamic_scale": None,
    }  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adam", "clipnorm"])
def test_sparse_gradients_with_one_row_an_entry(optimizer):
    """Positions are the same for every sample: their rows are one row in the whole batch."""

    class Positions(layers.Layer):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = layers.Embedding(30, 8), layers.Embedding(6, 8)

        def call(self, x):
            return self.tokens(x) + self.places(ops.arange(6))

    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = layers.Flatten()(Positions()(inputs))
        model = keras.Model(inputs, layers.Dense(3, "softmax")(x))
        model.compile(OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy")
        return model

    compare(build, TOKENS, LABELS)


class Tracked(keras.Model):
    """Returns the running results of trackers that it feeds with each batch's own numbers."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((8,)), layers.Dense(4, "tanh"), layers.Dense(8)])
        self.trackers = [keras.metrics.Mean(name=name) for name in ("total", "error", "size")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, x):
        with tf.GradientTape() as tape:
            error = ops.mean(ops.sum((self.net(x) - x) ** 2, axis=1))
            size = ops.mean(ops.sum(1.0 + 0.0 * x, axis=1))  # the same in every slice
            total = error + size
        weights = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        for tracker, value in zip(self.trackers, (total, error, size), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_trackers_of_a_step_of_ones_own():
    def build():
        model = Tracked()
        model.compile("adam")
        return model

    compare(build, X, None)


class GoesOn(keras.Model):
    """Goes on after `apply`, and must see the new weights then."""

    def __init__(self, tail):
        super().__init__()
        self.student, self.teacher = (
            keras.Sequential(
                [keras.Input((8,)), layers.Dense(4, "tanh"), layers.Dropout(0.0), layers.Dense(3)]
            )
            for _ in range(2)
        )
        self.teacher.trainable = False
        self.tail = tail
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self.student(x, training=True) + 0.1 * self.teacher(x)
            loss = self.compute_loss(x, y, outputs)
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(outputs)
        return {"loss": loss, "mean": self.mean.result(), **(self.tail(self, x) or {})}


def follow(model, x):
    for mine, other in zip(model.teacher.variables, model.student.variables, strict=True):
        mine.assign(0.9 * mine + 0.1 * other)


def clip(model, x):
    for weight in model.student.trainable_variables:
        weight.assign(tf.clip_by_value(weight, -0.3, 0.3))


def norm(model, x):
    return {"norm": tf.add_n([tf.norm(w) for w in model.student.trainable_variables])}


def again(model, x):
    model.teacher.layers[-1].bias.assign(tf.reduce_mean(model.student(x), axis=0))


def look_again(model, x):
    model.mean.update_state(model.student(x))


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@pytest.mark.parametrize(
    ("eager", "tail", "refused"),
    [
        (False, follow, None),
        (True, follow, None),
        (False, clip, None),
        (True, clip, None),
        (False, norm, "it returns what it computes from the weights"),
        (False, again, "uses the new weights and its batch together"),
        (False, look_again, "it writes what it computes from its batch with the weights"),
    ],
)
def test_a_step_that_goes_on_after_apply(eager, tail, refused):
    trained = []
    for guarded in (False, True):
        keras.utils.set_random_seed(3)
        model = GoesOn(tail)
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizers.Adam(0.05), loss, run_eagerly=eager)
        fit = functools.partial(legroom.fit, model, slice_size=5) if guarded else model.fit
        history = fit(X, LABELS, batch_size=16, epochs=2, verbose=0, shuffle=False)
        trained.append((model, history))
    for one, other in zip(trained[0][0].variables, trained[1][0].variables, strict=True):
        assert relative(one, other) <= 1e-4, one.path
    for key, values in trained[0][1].history.items():
        np.testing.assert_allclose(values, history.history[key], rtol=1e-4, err_msg=key)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert [refused in note for note in notes] == [True] if refused else not notes
    assert history.legroom.slice_size == (16 if refused else 5)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_a_function_called_with_other_models_is_another_step():
    def train(decorate):
        keras.utils.set_random_seed(3)
        models = [regressor(optimizer=optimizers.SGD(0.05)) for _ in range(2)]

        @decorate
        @tf.function
        def step(model, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            weights = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        for model in models:
            model.optimizer.build(model.trainable_variables)
        for start in (0, 16):
            for model in models:
                step(
                    model,
                    tf.constant(X[start : start + 16]),
                    tf.constant(VALUES[start : start + 16]),
                )
        return models

    plain, events = train(lambda function: function), []
    with listening(events.append):
        guarded = train(legroom.step(slice_size=5))
    assert [event.data["slice_size"] for event in events if event.name == "plan"] == [5, 5]
    for one, other in zip(plain, guarded, strict=True):
        assert int(other.optimizer.iterations) == 2
        for a, b in zip(one.variables, other.variables, strict=True):
            assert relative(a, b) <= 1e-6


def test_regularizers_and_constraints_count_once():
    def build():
        inputs = keras.Input((8,))
        hidden = layers.Dense(
            16, "relu", kernel_regularizer="l2", activity_regularizer="l1",
            bias_regularizer="l1", kernel_constraint=keras.constraints.MaxNorm(0.5),
        )(inputs)  # fmt: skip
        model = keras.Model(inputs, layers.Dense(3, "softmax")(hidden))
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    compare(build, X, LABELS)


@pytest.mark.parametrize("reduce", [ops.mean, ops.sum])
def test_add_loss(reduce):
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * reduce(ops.square(x)))
            return x

    def build():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(8), Adds(), layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    compare(build, X, VALUES)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
def test_loss_function_that_hides_its_reduction(reduce):
    compare(lambda: regressor(lambda a, b: reduce(tf.square(a - b)), metrics=()), X, VALUES)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_metric_that_needs_the_whole_batch():
    def largest(y_true, y_pred):
        return tf.reduce_max(tf.abs(y_true - y_pred))

    compare(lambda: regressor(metrics=("mae", largest)), X, VALUES)


def test_many_metrics():
    def build():
        metrics = [
            "accuracy",
            keras.metrics.SparseTopKCategoricalAccuracy(2),
            keras.metrics.SparseCategoricalCrossentropy(),
        ]
        return classifier(metrics=metrics, weighted_metrics=["accuracy"])

    compare(build, X, LABELS, class_weight={0: 1.0, 1: 3.0, 2: 0.5})


def several_outputs(eager=False, loss_weights=None):
    """Two inputs, two outputs, dictionaries throughout."""
    first, second = keras.Input((8,), name="a"), keras.Input((8,), name="b")
    hidden = layers.Dense(8, "relu")(layers.Concatenate()([first, second]))
    model = keras.Model(
        {"a": first, "b": second},
        {"p": layers.Dense(3, "softmax", name="p")(hidden), "q": layers.Dense(1, name="q")(hidden)},
    )
    model.compile(
        "adam",
        {"p": "sparse_categorical_crossentropy", "q": losses.Huber(reduction="sum")},
        loss_weights=loss_weights,
        metrics={"p": ["accuracy"], "q": ["mae"]},
        run_eagerly=eager,
    )
    return model


@pytest.mark.parametrize("eager", [False, True])
def test_several_inputs_and_outputs(eager):
    compare(
        lambda: several_outputs(eager, {"p": 1.0, "q": 0.3}),
        {"a": X, "b": X[::-1].copy()}, {"p": LABELS, "q": VALUES},
        sample_weight={"p": WEIGHTS, "q": WEIGHTS[::-1].copy()},
    )  # fmt: skip


class OwnStep(keras.Model):
    """A subclassed model with its own train_step, and a running mean fed by hand."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(8, "relu"), layers.Dense(1)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result(), "last": loss}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_own_train_step():
    def build():
        model = OwnStep()
        model.compile("adam")
        return model

    compare(build, X, VALUES)


class Duel(keras.Model):
    """Two optimizers in turn, as in a GAN: the second must see what the first one wrote."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
        self.judge = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)]
        )
        self.first, self.second = optimizers.Adam(0.02), optimizers.Adam(0.02)
        self.judged, self.made = keras.metrics.Mean(name="j"), keras.metrics.Mean(name="m")

    @property
    def metrics(self):
        return [self.judged, self.made]

    def train_step(self, data):
        real = data[0] if isinstance(data, tuple) else data
        loss = losses.BinaryCrossentropy(from_logits=True)
        count = tf.shape(real)[0]
        fake = self.maker(real[:, ::-1])
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            judged = loss(labels, self.judge(tf.concat([fake, real], 0)))
        weights = self.judge.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(judged, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = loss(tf.zeros((count, 1)), self.judge(self.maker(real[:, ::-1])))
        weights = self.maker.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(made, weights), weights, strict=True))
        self.judged.update_state(judged)
        self.made.update_state(made)
        return {"j": self.judged.result(), "m": self.made.result()}


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
@pytest.mark.parametrize("eager", [False, True])
def test_two_optimizers_in_turn(eager):
    def build():
        model = Duel()
        model.compile(optimizer=None, run_eagerly=eager)
        return model

    compare(build, X, epochs=4)


def test_frozen_layers():
    def build():
        model = classifier()
        model.layers[0].trainable = False
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    compare(build, X, LABELS)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    def build():
        keras.config.set_dtype_policy(policy)
        return classifier(optimizer=optimizers.SGD(0.05))

    # bfloat16 has eight bits: single roundings are of that size, and XLA rounds sums once more.
    tolerance = {"mixed_float16": 2e-3, "mixed_bfloat16": 1e-2}[policy]
    compare(build, X, LABELS, tolerance=2 * tolerance if ON_JAX else tolerance)


def test_jit_compile():
    compare(lambda: classifier(jit_compile=True), X, LABELS)


@ONE_STEP
def test_steps_per_execution():
    compare(lambda: classifier(steps_per_execution=2), X, LABELS)


def test_one_device_of_a_mirrored_strategy():
    def build():
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            return classifier()

    compare(build, X, LABELS)


def dataset():
    """The same batches as a tf.data pipeline, with weights."""
    return tf.data.Dataset.from_tensor_slices((X, LABELS, WEIGHTS)).batch(16)


def generator():
    """The same batches from a generator that ends after two epochs."""
    for _ in range(2):
        for start in range(0, N, 16):
            yield X[start : start + 16], LABELS[start : start + 16]


class Batches(keras.utils.PyDataset):
    """The same batches as a PyDataset."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[index * 16 : index * 16 + 16], LABELS[index * 16 : index * 16 + 16]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (dataset, {"batch_size": None}),
        (lambda: dataset().repeat(), {"batch_size": None, "steps_per_epoch": 3}),
        (generator, {"batch_size": None, "steps_per_epoch": 3}),
        (Batches, {"batch_size": None}),
    ],
    ids=["tf.data", "repeated", "generator", "PyDataset"],
)
def test_sources(source, options):
    compare(classifier, source, **options)


@pytest.mark.parametrize("slice_size", [16, 5])
@pytest.mark.parametrize("steps_per_execution", [1, pytest.param(2, marks=ONE_STEP)])
def test_data_of_unknown_length(slice_size, steps_per_execution):
    """Keras takes a part of a step when such data ends; weights and seeds are the same after it."""

    def build():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(16, activation="relu"),
                layers.Dropout(0.4 if slice_size == 16 else 0.0),
                layers.Dense(3, "softmax"),
            ]
        )
        model.compile(
            optimizers.AdamW(0.01, weight_decay=0.1), "sparse_categorical_crossentropy",
            metrics=["accuracy"], steps_per_execution=steps_per_execution,
        )  # fmt: skip
        return model

    def source():
        return dataset().filter(lambda x, y, weights: tf.constant(True))

    compare(build, source, batch_size=None, epochs=3, slice_size=slice_size)


def test_validation_callbacks_and_initial_epoch():
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((batch, sorted(logs)))
    )
    history = compare(
        classifier, X, LABELS, validation_split=0.25, epochs=4, initial_epoch=1,
        callbacks=[callback],
    )  # fmt: skip
    assert "val_accuracy" in history.history
    assert len(seen) % 2 == 0
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


@pytest.mark.on_tensorflow("Keras takes no ragged tensors on PyTorch")
def test_ragged_input():
    rows = tf.RaggedTensor.from_row_lengths(
        RNG.integers(1, 30, 60), np.diff(np.linspace(0, 60, 17).astype(int))
    )

    def build():
        class Sums(keras.Model):
            def __init__(self):
                super().__init__()
                self.table = layers.Embedding(30, 4)
                self.out = layers.Dense(1)

            def call(self, x):
                return self.out(tf.reduce_sum(self.table(x.to_tensor()), axis=1))

        model = Sums()
        model.compile("sgd", "mse")
        return model

    data = tf.data.Dataset.from_tensor_slices((rows, VALUES[:16])).batch(16)
    compare(build, data, batch_size=None)


def test_results_of_a_batch_where_the_samples_that_are_tried_are_alike():
    """All of those that steps are compared on are classified wrongly: any rule agrees for them."""
    labels = np.ones(16, "int64")  # which everything is taken for
    labels[[0, 1, 2, 3, 4, 5, 10, 15]] = 2
    found = []
    for guard in (False, True):
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(3, "softmax", kernel_initializer="zeros")]
        )
        model.compile(
            keras.optimizers.SGD(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        model.layers[-1].bias.assign([0.0, 1.0, 0.0])
        if guard:
            legroom.guard(model, slice_size=4)
        found.append(
            [
                step(X[:16], labels, return_dict=True)["accuracy"]
                for step in (model.train_on_batch, model.test_on_batch)
            ]
        )
    np.testing.assert_allclose(found[1], found[0])


def test_on_batch_evaluate_and_predict():
    results = []
    for guarded in (False, True):
        keras.utils.set_random_seed(3)
        model = several_outputs()
        ran = []
        if guarded:
            legroom.guard(model, slice_size=5)
            # 44 samples at once, or 16, 16 and 12: once for each size.
            ran = ["batch", *["evaluation batch"] * 3, *["prediction batch"] * 3]
        x, y = {"a": X, "b": X}, {"p": LABELS, "q": VALUES}
        events = []
        with listening(events.append):
            numbers = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
            numbers.append(model.test_on_batch(x, y, return_dict=True))
            numbers.append(model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True))
            predictions = [model.predict(x, batch_size=16, verbose=0), model.predict_on_batch(x)]
        results.append((numbers, predictions))
        assert [one.data["slice_size"] for one in events if one.name == "plan"] == [5] * len(ran)
        assert [one.data["subject"] for one in events if one.name == "plan"] == ran
    (numbers, predictions), (others, guessed) = results
    for one, other in zip(numbers, others, strict=True):
        assert {key: float(value) for key, value in one.items()} == pytest.approx(
            {key: float(value) for key, value in other.items()}, rel=1e-4
        )
    for one, other in zip(predictions, guessed, strict=True):
        for key in ("p", "q"):
            np.testing.assert_allclose(one[key], other[key], rtol=1e-4, atol=1e-6)


@pytest.mark.on_tensorflow("is written with TensorFlow's own ops")
def test_an_apply_of_variables_that_keras_does_not_know():
    """Accumulation by hand, in two functions: TensorFlow's own variables on both sides."""
    for guarded in (False, True):
        weight, sums = tf.Variable([1.0, 2.0]), tf.Variable([0.5, 0.25])
        optimizer = optimizers.SGD(0.1)

        def apply(optimizer=optimizer, sums=sums, weight=weight):
            optimizer.apply_gradients([(sums, weight)])

        step = tf.function(apply)
        (legroom.step(step) if guarded else step)()
        np.testing.assert_allclose(weight.numpy(), [0.95, 1.975], rtol=1e-6)
