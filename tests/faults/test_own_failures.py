"""An error of legroom's own, before a step has run, costs a sentence and not the training."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.backends.tensorflow import trainer, whole
from legroom.backends.tensorflow.careful import is_users_own
from legroom.guard import registry, resume

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = X.sum(1, keepdims=True)


def build(name=None, **compiling):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, "relu"), layers.Dropout(0.2), layers.Dense(1)],
        name=name,
    )
    model.compile(keras.optimizers.AdamW(0.01), "mse", metrics=["mae"], **compiling)
    return model


def fit(model, train=None, **options):
    keras.utils.set_random_seed(5)
    train = model.fit if train is None else train
    return train(X, Y, batch_size=16, epochs=2, verbose=0, **options)


def assert_same(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


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


def test_a_training_that_can_not_be_kept_runs(monkeypatch, capsys, tmp_path):
    plain = build()
    fit(plain)
    monkeypatch.setattr(resume, "training_fingerprint", None)
    model = build()
    fit(model, lambda *args, **options: legroom.fit(model, *args, **options),
        snapshots=tmp_path / "kept")  # fmt: skip
    assert_same(plain, model)
    assert "can't be resumed" in capsys.readouterr().err.replace("\n", " ")


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
