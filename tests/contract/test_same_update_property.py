"""Random models, batches and splits: slices give the update of the whole batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

import legroom

REDUCTIONS = ["sum_over_batch_size", "sum"]
if [*map(int, keras.__version__.split(".")[:2])] >= [3, 7]:
    REDUCTIONS.append("mean_with_sample_weight")


@st.composite
def trainings(draw):
    """A model, its data and a split: every full batch is more than a slice."""
    batch = draw(st.integers(2, 20))
    return {
        "samples": draw(st.integers(batch, 40)),
        "batch": batch,
        "slice": draw(st.integers(1, batch - 1)),
        "hidden": draw(st.lists(st.integers(1, 12), max_size=3)),
        "activation": draw(st.sampled_from(["relu", "tanh", "gelu"])),
        "optimizer": draw(st.sampled_from(["sgd", "momentum", "rmsprop"])),
        "loss": draw(st.sampled_from(["mse", "mae", "huber", "log_cosh"])),
        "reduction": draw(st.sampled_from(REDUCTIONS)),
        "regularizer": draw(st.sampled_from([None, "l2"])),
        "weighted": draw(st.booleans()),
        "convolution": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }  # fmt: skip


def build(case):
    """The model of a case."""
    keras.utils.set_random_seed(case["seed"])
    stack = [keras.Input((6, 4))]
    if case["convolution"]:
        stack.append(layers.Conv1D(3, 2, activation=case["activation"]))
    stack.append(layers.Flatten())
    stack += [
        layers.Dense(width, case["activation"], kernel_regularizer=case["regularizer"])
        for width in case["hidden"]
    ]
    model = keras.Sequential([*stack, layers.Dense(2)])
    optimizer = {
        "sgd": keras.optimizers.SGD(0.01),
        "momentum": keras.optimizers.SGD(0.01, momentum=0.9),
        "rmsprop": keras.optimizers.RMSprop(0.001, epsilon=1e-3),
    }[case["optimizer"]]
    loss = {
        "mse": keras.losses.MeanSquaredError,
        "mae": keras.losses.MeanAbsoluteError,
        "huber": keras.losses.Huber,
        "log_cosh": keras.losses.LogCosh,
    }[case["loss"]](reduction=case["reduction"])
    model.compile(optimizer, loss, metrics=["mae"], weighted_metrics=["mse"])
    return model


UNTIMED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=8, **UNTIMED)
@given(trainings())
def test_random_trainings_in_slices(case):
    check(case)


@pytest.mark.long
@settings(max_examples=60, **UNTIMED)
@given(trainings())
def test_more_random_trainings_in_slices(case):
    check(case)


def check(case):
    rng = np.random.default_rng(case["seed"])
    x = rng.normal(size=(case["samples"], 6, 4)).astype("float32")
    y = rng.normal(size=(case["samples"], 2)).astype("float32")
    fitting = {
        "batch_size": case["batch"],
        "epochs": 20 // -(-case["samples"] // case["batch"]) + 1,  # 20 steps or more
        "sample_weight": rng.random(case["samples"]) + 0.1 if case["weighted"] else None,
        "verbose": 0,
    }
    plain, sliced = build(case), build(case)
    keras.utils.set_random_seed(case["seed"])
    history = plain.fit(x, y, **fitting)
    keras.utils.set_random_seed(case["seed"])
    other = legroom.fit(sliced, x, y, slice_size=case["slice"], **fitting)
    assert other.legroom.sliced
    assert other.legroom.slice_size == case["slice"]
    scale = max(np.abs(weight).max() for weight in plain.get_weights())
    for one, two in zip(plain.get_weights(), sliced.get_weights(), strict=True):
        assert np.abs(one - two).max() <= 1e-4 * max(scale, 1e-3)
    for key, values in history.history.items():
        np.testing.assert_allclose(values, other.history[key], rtol=1e-3, atol=1e-5, err_msg=key)
