"""When two models are the same to ask about."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from legroom.backends.base import current
from legroom.backends.keras.models.identity import data_identity, identity


def make(units: int = 8, optimizer: Any = "adam", loss: Any = "mse", **options: Any) -> Any:
    model = keras.Sequential(
        [keras.Input((4,), name="input"), keras.layers.Dense(units, name="first"),
         keras.layers.Dense(1, name="last")], name="net")  # fmt: skip
    model.compile(optimizer, loss, **options)
    return model


def test_equal_models_are_the_same() -> None:
    assert identity(make()) == identity(make()) is not None


def test_values_do_not_matter() -> None:
    model = make()
    before = identity(model)
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    assert identity(model) == before


@pytest.mark.parametrize(
    "other",
    [
        lambda: make(units=9),
        lambda: make(optimizer="sgd"),
        lambda: make(optimizer=keras.optimizers.Adam(clipnorm=1.0)),
        lambda: make(loss="mae"),
        lambda: make(jit_compile=True),
        lambda: make(run_eagerly=True),
    ],
    ids=["units", "optimizer", "clipping", "loss", "compiled", "eager"],
)
def test_what_changes_a_step_is_another_model(other: Any) -> None:
    assert identity(other()) not in (None, identity(make()))


def test_frozen_layers_are_another_model() -> None:
    model = make()
    before = identity(model)
    model.layers[0].trainable = False
    assert identity(model) != before


class Own(keras.Model):
    def call(self, inputs: Any) -> Any:
        return inputs


class OwnLayer(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs * 2


def own_loss(y: Any, predicted: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - predicted))


def with_own_layer() -> Any:
    return keras.Sequential([keras.Input((4,)), OwnLayer()])


def with_lambda() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1)])


def with_own_step() -> Any:
    model = make()
    model.train_step = lambda data: {}
    return model


def with_own_call() -> Any:
    model = make()
    model.layers[0].call = lambda inputs: inputs[:, :1] * 8
    return model


@pytest.mark.parametrize(
    "model",
    [Own, with_own_layer, with_lambda, with_own_step, with_own_call,
     lambda: make(loss=own_loss), lambda: "no model"],
    ids=["model", "layer", "lambda", "step", "call", "loss", "text"],
)  # fmt: skip
def test_code_that_may_change_has_no_identity(model: Any) -> None:
    assert identity(model()) is None


def test_what_is_recomputed_for_now_is_another_model() -> None:
    model = make()
    with current().recompute.recomputing(model, [["first"]]):
        assert identity(model) is None
    assert identity(model) is not None


def test_data_is_known_by_its_shapes() -> None:
    given = (np.zeros((8, 4), "float32"), {"y": np.zeros(8)})
    other = (np.ones((8, 4), "float32"), {"y": np.ones(8)})
    assert data_identity(given) == data_identity(other)
    assert data_identity(given) != data_identity((given[0], {"y": np.zeros(9)}))
    assert data_identity(given) != data_identity((given[0], {"z": np.zeros(8)}))
    assert data_identity(None) is not None
    assert data_identity(iter([given])) is None
