"""Loops written by hand on PyTorch with layers, optimizers and metrics of Keras."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import keras  # noqa: E402

import legroom  # noqa: E402
from legroom.core.events import listening  # noqa: E402

pytestmark = pytest.mark.on_torch("a loop in PyTorch")

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches():
    rng = np.random.default_rng(0)
    for n in (16, 16, 12):
        yield (
            torch.tensor(rng.normal(size=(n, 12)), dtype=torch.float32),
            torch.tensor(rng.integers(0, 5, n)),
        )


def build(norm=False):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(24, "tanh"),
         *([keras.layers.BatchNormalization()] if norm else []),
         keras.layers.Dropout(0.3), keras.layers.Dense(5)]
    )  # fmt: skip
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
    metric = keras.metrics.SparseCategoricalAccuracy()

    def step(x, y):
        scores = model(x, training=True)
        loss = LOSS(y, scores)
        model.zero_grad()
        loss.backward()
        weights = model.trainable_weights
        with torch.no_grad():
            optimizer.apply([w.value.grad for w in weights], weights)
        metric.update_state(y, scores)
        return loss.detach()

    def state():
        variables = [*model.variables, *optimizer.variables, *metric.variables]
        return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]

    return step, state


def test_slices_are_the_step_and_metrics_see_each_sample_once():
    found = []
    for decorate in (lambda step: step, legroom.step, legroom.step(slice_size=5)):
        step, state = build()
        guarded, events = decorate(step), []
        with listening(events.append):
            losses = [float(guarded(x, y)) for x, y in batches()]
        found.append((state(), losses, events))
    plain, whole, sliced = found
    for one, other, third in zip(plain[0], whole[0], sliced[0], strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, third, atol=1e-5)
    np.testing.assert_allclose(plain[1], sliced[1], rtol=1e-5)
    assert {e.data["slice_size"] for e in sliced[2] if e.name == "plan"} == {5}
    assert not [e.text for e in sliced[2] if e.name == "note"]


def test_batch_norm_is_named_and_its_statistics_are_not_left_by_the_comparison():
    states, notes = [], []
    for decorate in (lambda step: step, legroom.step(slice_size=5, exact=True)):
        step, state = build(norm=True)
        guarded = decorate(step)
        with listening(lambda event: event.name == "note" and notes.append(event.text)):
            for x, y in batches():
                guarded(x, y)
        states.append(state())
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "mixes the samples" in notes[0]


def test_an_evaluation_within_fit_is_sliced():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(5)])
    model.compile("sgd", LOSS, metrics=["accuracy"])
    legroom.guard(model, slice_size=5)
    notes = []
    x, y = next(batches())
    with listening(lambda event: event.name == "note" and notes.append(event.text)):
        model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), verbose=0)
    assert notes == []
