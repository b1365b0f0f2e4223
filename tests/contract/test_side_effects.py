"""What a step does beside its training, in slices: summaries, printed lines, calls of Python."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom

from .comparing import VALUES, X, compare

pytestmark = pytest.mark.on_tensorflow("is written with TensorFlow's own ops")

PYTHON = "the step calls Python functions"


class Beside(keras.Model):
    """Does something with its loss, beside its training."""

    def __init__(self, act):
        super().__init__()
        self.dense = layers.Dense(1)
        self.act = act

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.act(loss)
        return {"loss": loss}


def build(act, eager=False):
    model = Beside(act)
    model.compile("sgd", run_eagerly=eager)
    return model


def read(folder):
    """The scalars that were written: their steps and values."""
    events = [
        tf.compat.v1.Event.FromString(record.numpy())
        for path in sorted(tf.io.gfile.glob(f"{folder}/*"))
        for record in tf.data.TFRecordDataset(path)
    ]
    return [
        (event.step, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
    ]


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("exact", [False, True])
def test_summaries_are_written_once_a_step(tmp_path, eager, exact):
    written = []
    for guarded in (False, True):
        keras.utils.set_random_seed(3)
        folder = str(tmp_path / str(guarded))
        writer = tf.summary.create_file_writer(folder)
        count = tf.Variable(0, dtype=tf.int64)

        def write(loss, writer=writer, count=count):
            with writer.as_default(step=count), tf.summary.record_if(lambda: count < 3):
                tf.summary.scalar("loss", loss)

        model = build(write, eager)

        def next_step(batch, logs, count=count):
            count.assign_add(1)

        counting = keras.callbacks.LambdaCallback(on_train_batch_end=next_step)
        options = {"batch_size": 7, "verbose": 0, "shuffle": False, "callbacks": [counting]}
        if guarded:
            history = legroom.fit(model, X, VALUES, slice_size=3, exact=exact, **options)
        else:
            model.fit(X, VALUES, **options)
        writer.close()
        written.append(read(folder))
    assert [step for step, _ in written[1]] == [step for step, _ in written[0]] == [0, 1, 2]
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert ["writes summaries" in note for note in notes] == [True], notes
    assert {e.data["slice_size"] for e in history.legroom.events if e.name == "plan"} == {3}


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_python_that_gives_no_result_is_called_for_each_slice_and_not_on_trial(eager):
    calls = []
    model = build(lambda loss: tf.py_function(lambda _: calls.append(1), [loss], []), eager)
    history = legroom.fit(model, X, VALUES, batch_size=14, slice_size=5, verbose=0, shuffle=False)
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert [f"{PYTHON} (tf.py_function)" in note for note in notes] == [True], notes
    assert len(calls) == 6


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("name", ["tf.py_function", "tf.numpy_function"])
def test_calls_of_python_are_named_and_not_sliced_if_exact(name, eager):
    def act(loss):
        getattr(tf, name.removeprefix("tf."))(lambda x: x, [loss], tf.float32)

    compare(lambda: build(act, eager), X, VALUES, changes=PYTHON)
    history = legroom.fit(
        build(act, eager), X, VALUES, batch_size=14, slice_size=5, exact=True, verbose=0
    )
    notes = [event.text for event in history.legroom.events if event.name == "note"]
    assert ["with exact=True the batch runs whole" in note for note in notes] == [True], notes
    assert notes[0].startswith(f"{PYTHON} ({name}) once for each slice")
    assert not [event for event in history.legroom.events if event.name == "plan"]


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_python_that_is_said_to_have_no_effects_is_not_named(eager):
    def act(loss):
        tf.numpy_function(lambda x: np.float32(2 * x), [loss], tf.float32, stateful=False)

    compare(lambda: build(act, eager), X, VALUES)


def test_lines_are_printed_for_each_slice_and_not_on_trial(capfd):
    model = build(lambda loss: tf.print("the loss"))
    legroom.fit(model, X, VALUES, batch_size=14, slice_size=5, verbose=0, shuffle=False)
    assert capfd.readouterr().err.count("the loss\n") == 6


def test_summaries_of_a_step_with_two_optimizers(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    weights = [keras.Variable(np.ones((8, 1), "float32")) for _ in range(2)]
    optimizers = [keras.optimizers.SGD(0.1) for _ in weights]
    for optimizer, weight in zip(optimizers, weights, strict=True):
        optimizer.build([weight])

    @legroom.step(slice_size=5)
    @tf.function
    def step(x, y):
        for optimizer, weight in zip(optimizers, weights, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights[0] + x @ weights[1] - y) ** 2)
            with writer.as_default(step=1):
                tf.summary.scalar("loss", loss)
            optimizer.apply([tape.gradient(loss, weight.value)], [weight])
        return loss

    step(tf.constant(X), tf.constant(VALUES))
    writer.close()
    assert len(read(tmp_path)) == 2
