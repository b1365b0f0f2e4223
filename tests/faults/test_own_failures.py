"""An error of legroom's own costs a sentence and not the training."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.backends.careful import is_users_own
from legroom.backends.tensorflow.commit import units
from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.slices.sliced import SlicedStep
from legroom.backends.tensorflow.step import trainer, whole
from legroom.core.errors import LegroomError
from legroom.guarding import registry
from legroom.guarding.resuming import resume
from legroom.guarding.retrying.guarded_step import GuardedStep

pytestmark = pytest.mark.on_tensorflow("is about the parts of TensorFlow's backend")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = X.sum(1, keepdims=True)


def build(name=None, dropout=0.2, **compiling):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, "relu"), layers.Dropout(dropout), layers.Dense(1)],
        name=name,
    )
    model.compile(keras.optimizers.AdamW(0.01), "mse", metrics=["mae"], **compiling)
    return model


def fit(model, train=None, **options):
    keras.utils.set_random_seed(5)
    train = model.fit if train is None else train
    return train(X, Y, batch_size=16, epochs=2, verbose=0, **options)


def assert_same(one, other, rtol=1e-6):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("place", "name"),
    [(whole.WholeStep, "__call__"), (registry, "supervised"), (trainer, "DataEnd")],
)
def test_the_plain_step_takes_over(monkeypatch, capsys, place, name, eager):
    plain = build(run_eagerly=eager)
    history = fit(plain)
    monkeypatch.setattr(place, name, None)  # which legroom fails to call
    model = build(f"{name.strip('_')}_{eager}", run_eagerly=eager)
    guarded = fit(model, lambda *args, **options: legroom.fit(model, *args, **options))
    assert_same(plain, model)
    assert guarded.history.keys() == history.history.keys()
    for key, values in history.history.items():
        assert guarded.history[key] == pytest.approx(values)
    told = capsys.readouterr().err.replace("\n", " ")
    assert f"{model.name} is trained as Keras would, without legroom" in told
    assert "TypeError: 'NoneType' object is not callable" in told


def third_fails(monkeypatch, place, name, *, after=False):
    """Have the third call of a method fail in legroom's own lines, before or after it has run."""
    calls, run = [], getattr(place, name)

    def call(self, *args):
        calls.append(name)
        if len(calls) != 3:
            return run(self, *args)
        if after:
            run(self, *args)
        return run(object(), *args)

    monkeypatch.setattr(place, name, call)
    return calls


@pytest.mark.parametrize(
    ("place", "name", "after", "eager", "slice_size"),
    [
        (whole.TracedStep, "run", False, False, None),
        (Committer, "_begin", False, True, None),  # the gradients are there
        (SlicedStep, "_outputs", False, False, 8),  # all slices have run
        (SlicedStep, "_outputs", True, True, 8),
        # The step is through: it must not run a second time.
        (GuardedStep, "_count", False, False, None),
        (GuardedStep, "_count", True, True, 8),
    ],
)
def test_the_plain_step_takes_over_in_mid_training(
    monkeypatch, capsys, place, name, after, eager, slice_size
):
    building = {"dropout": 0.0 if slice_size else 0.2, "run_eagerly": eager}  # slices draw anew
    plain = build(**building)
    history = fit(plain)
    calls = third_fails(monkeypatch, place, name, after=after)
    model = build(f"mid{name}_{eager}_{after}", **building)
    options = {} if slice_size is None else {"slice_size": slice_size}
    guarded = fit(model, lambda *a, **o: legroom.fit(model, *a, **options, **o))
    assert len(calls) == 3
    assert_same(plain, model, rtol=1e-4 if slice_size else 1e-6)
    for key, values in history.history.items():
        assert guarded.history[key] == pytest.approx(values, rel=1e-4)
    told = capsys.readouterr().err.replace("\n", " ")
    assert f"{model.name} is trained as Keras would, without legroom" in told


def test_an_update_that_fails_half_way_for_good_is_not_run_again(monkeypatch):
    """No step may run twice that has written a part of its update."""
    runs, run = [], Committer._run_call

    def all_but_the_first_fail(self, *args):
        runs.append(args)
        run(self if len(runs) == 1 else object(), *args)

    monkeypatch.setattr(Committer, "_run_call", all_but_the_first_fail)
    by_itself = lambda self, present: [units.Unit([i]) for i in present]  # noqa: E731
    monkeypatch.setattr(units.Units, "beside", by_itself)
    model = build(run_eagerly=True)
    with pytest.raises(LegroomError, match="1 of 4 groups of weights are updated"):
        fit(model, lambda *a, **o: legroom.fit(model, *a, **o))


def test_a_trace_that_fails_leaves_no_variable_without_a_value(monkeypatch, capsys):
    """The optimizer's slots are made in the first trace, and initialised when it is through."""
    plain = build()
    fit(plain)
    monkeypatch.setattr(Committer, "update_at_once", None)
    model = build()
    fit(model, lambda *a, **o: legroom.fit(model, *a, **o))
    assert_same(plain, model)
    assert "keeps a copy of the weights" in capsys.readouterr().err.replace("\n", " ")


def test_a_training_that_can_not_be_kept_runs(monkeypatch, capsys, tmp_path):
    plain = build()
    fit(plain)
    monkeypatch.setattr(resume, "training_fingerprint", None)
    model = build()
    fit(model, lambda *args, **options: legroom.fit(model, *args, **options),
        snapshots=tmp_path / "kept")  # fmt: skip
    assert_same(plain, model)
    assert "can't resume" in capsys.readouterr().err.replace("\n", " ")


def test_an_error_of_the_users_is_raised_at_once(capsys):
    calls = []

    class Own(keras.Model):
        def train_step(self, data):
            calls.append(data)
            raise LookupError("the user's own mistake")

    inputs = keras.Input((6,))
    model = Own(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(LookupError, match="the user's own mistake") as caught:
        legroom.fit(model, X, Y, verbose=0)
    assert is_users_own(caught.value)
    assert len(calls) == 1
    assert "without legroom" not in capsys.readouterr().err


def test_what_keras_raises_itself_is_raised_as_keras_does():
    errors = []
    for train in (keras.Model.fit, legroom.fit):
        with pytest.raises(ValueError, match="incompatible with the layer") as caught:
            train(build("five"), X[:, :5], Y, verbose=0)
        errors.append(re.sub(r"dense_\d+", "dense", str(caught.value)))
    assert errors[0] == errors[1]
