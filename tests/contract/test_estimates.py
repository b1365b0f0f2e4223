"""Estimates on PyTorch beside what steps really allocate, as PyTorch's own profiler notes it.

Those on TensorFlow are in tests/integration/test_estimate.py: they need a process of their own.
"""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.backends import patches
from legroom.core.errors import CannotFitError, LegroomError, UnsupportedModelError

pytestmark = pytest.mark.on_torch("TensorFlow's are checked in processes of their own")

RNG = np.random.default_rng(0)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def convolutional():
    model = keras.Sequential(
        [keras.Input((32, 32, 3)), layers.Conv2D(16, 3, activation="relu", name="first"),
         layers.BatchNormalization(), layers.MaxPooling2D(), layers.Dropout(0.2),
         layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    )  # fmt: skip
    model.compile("adam", LOGITS, metrics=["accuracy"])
    return model


def deep():
    """Enough layers for blocks of them to be worth computing again."""
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(8):
        x = layers.Dropout(0.1)(layers.ReLU()(layers.Conv2D(8, 3, padding="same")(x)))
        x = layers.BatchNormalization(momentum=0.5)(x)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", LOGITS, metrics=["accuracy"])
    return model


def attention():
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(200, 32, mask_zero=True)(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 16, dropout=0.1)(x, x)])
    x = layers.LSTM(24)(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), LOGITS)
    return model


def wide():
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(700, "relu"), layers.Dense(700, "relu"), layers.Dense(10)]
    )
    model.compile(keras.optimizers.AdamW(clipnorm=1.0), LOGITS)
    return model


class Own(keras.Model):
    """Only its own code knows what it is made of, and it has a step of its own."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(256)
        self.squash = lambda x: keras.ops.silu(x)
        self.last = layers.Dense(10)

    def call(self, x):
        return self.last(self.squash(self.first(x)))

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = keras.ops.mean(LOGITS(y, self(x)))
        loss.backward()
        weights = list(self.trainable_weights)
        self.optimizer.apply([v.value.grad for v in weights], weights)
        return {"loss": loss}


def own():
    model = Own()
    model(np.zeros((1, 64), "float32"))
    model.compile("adam", LOGITS)
    return model


def data_for(model, samples):
    shape = (64,) if isinstance(model, Own) else model.input_shape[1:]
    whole = not isinstance(model, Own) and "int" in str(model.inputs[0].dtype)
    x = RNG.integers(1, 200, (samples, *shape)) if whole else RNG.random((samples, *shape))
    return x.astype("int32" if whole else "float32"), RNG.integers(0, 10, samples)


def real_peak(model, samples):
    """The most that three steps of `fit` had allocated at once, weights included."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # what earlier tests left would be freed meanwhile, and be counted
    x, y = data_for(model, 3 * samples)
    # A batch is memory of NumPy's, which PyTorch uses as it is.
    now = most = sum(v.value.nbytes for v in model.variables) + (x.nbytes + y.nbytes) // 3
    # With Python's own thresholds, unlike other tests: Keras's loop over a masked sequence makes
    # cycles that hold a step's tensors until the collector comes.
    kept = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            model.fit(x, y, batch_size=samples, shuffle=False, verbose=0)
    finally:
        gc.set_threshold(*kept)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("samples", [5, 48])
@pytest.mark.parametrize("build", [convolutional, attention, wide, own])
def test_estimates_are_near_what_is_allocated(build, samples):
    model = build()
    made = legroom.estimate(model, samples)
    truth = real_peak(model, samples)
    assert max(made.peak_bytes, made.first_step_bytes) == pytest.approx(truth, rel=0.03)
    assert made.low_bytes <= truth <= made.high_bytes
    assert made.source == "traced"


def test_the_parts_add_up_and_layers_are_named():
    model = convolutional()
    made = legroom.estimate(model, 32)
    assert sum(made.breakdown.values()) == made.peak_bytes
    assert made.breakdown["weights"] == sum(v.value.nbytes for v in model.weights)
    assert made.breakdown["gradients"] == sum(v.value.nbytes for v in model.trainable_weights)
    assert made.breakdown["optimizer"] >= 2 * made.breakdown["gradients"]
    assert max(size for _, size in made.timeline) == made.peak_bytes
    assert all(
        sum(parts) == size for parts, (_, size) in zip(made.parts, made.timeline, strict=True)
    )
    names = {layer.name for layer in model.layers}
    assert {name for name, _ in made.layers} <= names
    # What BatchNormalization computes for pictures of 30×30 is the largest part of it.
    assert made.layers[0][0].startswith("batch_normalization")


def state(model):
    """Everything that asking must leave as it was."""
    import torch

    return {
        "weights": [value.tolist() for value in model.get_weights()],
        "kinds": {type(v.value) for v in model.variables},
        "optimizer": [v.path for v in model.optimizer.variables],
        "built": [model.optimizer.built, model._compile_metrics.built],
        "gradients": [v.value.grad is None for v in model.trainable_variables],
        "seed": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "names": layers.Dense(1).name.rpartition("_")[0],
        "training": model.training,
        "replaced": patches.places(),
        "calls": [name for layer in model.layers for name in vars(layer) if name == "call"],
    }


@pytest.mark.parametrize(
    "ask",
    [lambda model: legroom.estimate(model, 8),
     lambda model: legroom.plan(model, 64, memory="10MB"),
     lambda model: legroom.plan(model, 64, memory="18MB", exact=True),
     lambda model: legroom.largest_batch(model, memory="6MB")],
    ids=["estimate", "plan", "exact", "largest"],
)  # fmt: skip
def test_asking_changes_nothing(ask):
    patches.take_off_all()
    patches.switch_on()
    keras.utils.set_random_seed(3)
    model = deep()
    before = state(model)
    ask(model)
    after = state(model)
    assert [key for key in before if before[key] != after[key]] == []


def test_other_methods_need_less():
    model = convolutional()
    peaks = [legroom.estimate(model, 32, method=m).peak_bytes for m in ("fit", "evaluate")]
    assert peaks[1] < 0.7 * peaks[0]


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [(lambda: legroom.estimate(keras.Sequential([layers.Dense(1)]), 8), UnsupportedModelError,
      "not compiled|no optimizer"),
     (lambda: legroom.estimate(own_never_built(), 8), UnsupportedModelError, "never built"),
     (lambda: legroom.estimate(convolutional(), 8, source="probed"), LegroomError, "TensorFlow"),
     (lambda: legroom.plan(wide(), 8, memory="1MB"), CannotFitError, "No batch size helps")],
    ids=["not compiled", "not built", "probed", "too little"],
)  # fmt: skip
def test_what_is_wrong_is_said(ask, kind, words):
    with pytest.raises(kind, match=words):
        ask()


def own_never_built():
    model = Own()
    model.compile("adam", LOGITS)
    return model


def trained(model, x, y):
    keras.utils.set_random_seed(7)
    model.fit(x, y, batch_size=48, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def test_a_plan_that_recomputes_is_followed_exactly_and_needs_what_it_says():
    keras.utils.set_random_seed(1)
    plain = deep()
    whole = legroom.estimate(plain, 48)
    x, y = data_for(plain, 48)
    made = legroom.plan(plain, 48, memory=int(0.7 * whole.peak_bytes), exact=True)
    assert made.chosen.recompute
    assert made.chosen.peak_bytes <= made.budget_bytes
    weights = plain.get_weights()
    expected = trained(plain, x, y)
    keras.utils.set_random_seed(1)
    model = deep()
    model.set_weights(weights)
    made.apply(model)
    try:
        got = trained(model, x, y)
        peak = real_peak(model, 48)
    finally:
        legroom.uninstall()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    assert peak < 0.85 * whole.peak_bytes


def test_slices_are_planned_and_fit():
    model = wide()
    whole = legroom.estimate(model, 2048)
    made = legroom.plan(model, 2048, memory=int(0.8 * whole.peak_bytes), allow=("slices",))
    assert 1 <= made.slice_size < 2048
    assert made.chosen.peak_bytes <= made.budget_bytes


def test_the_largest_batch_fits_and_the_next_does_not():
    model = convolutional()
    budget = 20_000_000
    found = legroom.largest_batch(model, memory=budget)
    assert real_peak(convolutional(), found) <= budget
    assert real_peak(convolutional(), int(1.15 * found) + 1) > 0.96 * budget


def test_a_step_in_plain_pytorch():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(32, 300), nn.ReLU(), nn.Linear(300, 4))
    optimizer = torch.optim.Adam(model.parameters())

    @legroom.step
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    x, y = torch.rand(8, 32), torch.randint(0, 4, (8,))
    made = legroom.estimate(step, 256, data=(x, y))
    weights = sum(p.nbytes for p in model.parameters())
    assert made.breakdown["weights"] == weights
    assert made.breakdown["input"] == 256 * (32 * 4 + 8)
    assert made.peak_bytes > 4 * weights  # with gradients and Adam's slots
    assert not optimizer.state
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
