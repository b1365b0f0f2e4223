"""Estimates on JAX beside what steps really take, by the main memory of this process."""

from __future__ import annotations

import ctypes
import gc
import os
import time

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.backends import patches
from legroom.core.errors import CannotFitError, LegroomError, UnsupportedModelError

pytestmark = pytest.mark.on_jax("the other backends' estimates have tests of their own")

RNG = np.random.default_rng(0)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# Linux alone tells what a step takes of a CPU's memory.
on_linux = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")


def convolutional():
    model = keras.Sequential(
        [keras.Input((48, 48, 3)), layers.Conv2D(32, 3, activation="relu", name="first"),
         layers.MaxPooling2D(), layers.Dropout(0.2), layers.Conv2D(32, 3, activation="relu"),
         layers.GlobalAveragePooling2D(), layers.Dense(10)]
    )  # fmt: skip
    model.compile("adam", LOGITS, metrics=["accuracy"])
    return model


def normed():
    model = keras.Sequential(
        [keras.Input((24, 24, 3)), layers.Conv2D(8, 3), layers.BatchNormalization(),
         layers.Flatten(), layers.Dense(10)]
    )  # fmt: skip
    model.compile("sgd", LOGITS)
    return model


def attention():
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(200, 64, mask_zero=True)(inputs)
    x = layers.Add()([x, layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), LOGITS)
    return model


def recurrent():
    model = keras.Sequential([keras.Input((50, 64)), layers.LSTM(128), layers.Dense(10)])
    model.compile("adam", LOGITS)
    return model


def wide():
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(1500, "relu"), layers.Dense(1500, "relu"),
         layers.Dense(10)]
    )  # fmt: skip
    model.compile(keras.optimizers.AdamW(clipnorm=1.0), LOGITS)
    return model


def several_outputs():
    inputs = keras.Input((256,))
    hidden = layers.Dense(1024, "gelu")(inputs)
    outputs = {"few": layers.Dense(10, name="few")(hidden),
               "many": layers.Dense(300, name="many")(hidden)}  # fmt: skip
    model = keras.Model(inputs, outputs)
    model.compile("rmsprop", {"few": LOGITS, "many": "mse"})
    return model


class Own(keras.Model):
    """Only its own code knows what it is made of, and it has a step of its own."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(2048)
        self.last = layers.Dense(10)

    def call(self, x):
        return self.last(keras.ops.silu(self.first(x)))

    def train_step(self, state, data):
        import jax

        weights, others, slots, metrics = state
        x, y = data

        def loss_of(weights):
            outputs, changed = self.stateless_call(weights, others, x)
            return keras.ops.mean(LOGITS(y, outputs)), changed

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
        return {"loss": loss}, (weights, others, slots, metrics)


def own():
    model = Own()
    model(np.zeros((1, 64), "float32"))
    model.compile("adam", LOGITS)
    return model


def data_for(model, samples):
    shape = (64,) if isinstance(model, Own) else model.input_shape[1:]
    whole = not isinstance(model, Own) and "int" in str(model.inputs[0].dtype)
    x = RNG.integers(1, 200, (samples, *shape)) if whole else RNG.random((samples, *shape))
    y = RNG.integers(0, 10, samples)
    if isinstance(getattr(model, "output", None), dict):
        y = {"few": y, "many": RNG.random((samples, 300)).astype("float32")}
    return x.astype("int32" if whole else "float32"), y


class OneByOne(keras.callbacks.Callback):
    """No step begins before the one before it has ended, and has given back what it took."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)


def status(name):
    with open("/proc/self/status") as file:
        return int(file.read().split(f"{name}:")[1].split()[0]) * 1024


def real_peak(model, samples):
    """The most that steps of `fit` held at once, weights included."""
    library = ctypes.CDLL(None)
    library.mallopt(-3, 2**18)  # large arrays leave the process when they are freed
    x, y = data_for(model, 3 * samples)

    def fit():
        model.fit(x, y, batch_size=samples, shuffle=False, verbose=0, callbacks=[OneByOne()])

    fit()  # compiles
    most = 0
    for _ in range(2):
        gc.collect()
        library.malloc_trim(0)
        before = status("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        fit()
        most = max(most, status("VmHWM") - before)
    held = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return most + sum(v.value.nbytes for v in {id(v): v for v in held}.values())


@on_linux
@pytest.mark.parametrize(
    ("build", "samples"),
    [(convolutional, 32), (attention, 64), (recurrent, 128), (wide, 2048), (wide, 64),
     (several_outputs, 2048), (own, 2000)],
)  # fmt: skip
def test_estimates_are_near_what_is_taken(build, samples):
    model = build()
    made = legroom.estimate(model, samples)
    truth = real_peak(model, samples)
    assert made.source == "compiled"
    assert made.low_bytes <= truth <= made.high_bytes
    assert made.peak_bytes == pytest.approx(truth, rel=0.2)


def test_the_parts_add_up_and_layers_are_named():
    model = convolutional()
    made = legroom.estimate(model, 32)
    assert sum(made.breakdown.values()) == made.peak_bytes
    assert all(size >= 0 for size in made.breakdown.values())
    assert made.breakdown["weights"] == sum(v.value.nbytes for v in model.weights)
    assert made.breakdown["input"] == 32 * (48 * 48 * 3 + 1) * 4
    assert made.breakdown["optimizer"] >= 2 * made.breakdown["weights"]
    assert made.breakdown["activations"] > 0.4 * made.peak_bytes
    assert max(size for _, size in made.timeline) == made.peak_bytes
    assert {name for name, _ in made.layers} <= {layer.name for layer in model.layers}
    assert made.layers[0][0] == "first"


def test_gradients_are_told_from_activations():
    model = wide()
    made = legroom.estimate(model, 8)
    weights = made.breakdown["weights"]
    assert made.breakdown["activations"] < 0.2 * weights
    assert made.breakdown["gradients"] + made.breakdown["workspace"] >= 0.9 * weights


def state(model):
    """Everything that asking must leave as it was."""
    return {
        "weights": [value.tolist() for value in model.get_weights()],
        "kinds": {type(v.value) for v in model.variables},
        "optimizer": [v.path for v in model.optimizer.variables],
        "built": [model.optimizer.built, model._compile_metrics is None],
        "numpy": np.random.get_state()[1].tolist(),
        "names": layers.Dense(1).name.rpartition("_")[0],
        "replaced": patches.places(),
        "jit": model.train_function is None,
    }


@pytest.mark.parametrize(
    "ask",
    [lambda model: legroom.estimate(model, 8),
     lambda model: legroom.plan(model, 256, memory="20MB"),
     lambda model: legroom.plan(model, 8, memory="1GB", allow=legroom_allows()),
     lambda model: legroom.largest_batch(model, memory="30MB")],
    ids=["estimate", "plan", "mixed", "largest"],
)  # fmt: skip
def test_asking_changes_nothing(ask):
    patches.take_off_all()
    patches.switch_on()
    keras.utils.set_random_seed(3)
    model = normed()
    before = state(model)
    ask(model)
    after = state(model)
    assert [key for key in before if before[key] != after[key]] == []


def legroom_allows():
    from legroom.planning.make import ALLOWED

    return ALLOWED


def test_a_model_that_fits_nowhere_is_asked_about():
    """Nothing of it is there but its shapes: its optimizer's state would be 160 GB."""
    from legroom.backends.jax.forecast.imagined import without_memory

    with without_memory():
        model = keras.Sequential(
            [keras.Input((100_000,)), layers.Dense(100_000), layers.Dense(100_000)]
        )
    model.compile("adam", "mse")
    made = legroom.estimate(model, 2)
    assert made.breakdown["weights"] == 2 * 4 * (100_000**2 + 100_000)
    assert made.breakdown["optimizer"] == pytest.approx(2 * made.breakdown["weights"], rel=1e-6)


def test_other_methods_need_less():
    model = convolutional()
    peaks = [legroom.estimate(model, 32, method=m).peak_bytes for m in ("fit", "evaluate")]
    assert peaks[1] < 0.7 * peaks[0]


def run_eagerly():
    model = wide()
    model.run_eagerly = True
    return model


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [(lambda: legroom.estimate(keras.Sequential([layers.Dense(1)]), 8), UnsupportedModelError,
      "not compiled|no optimizer"),
     (lambda: legroom.estimate(never_built(), 8), UnsupportedModelError, "never built"),
     (lambda: legroom.estimate(run_eagerly(), 8), UnsupportedModelError, "op by op"),
     (lambda: legroom.estimate(wide(), 8, source="probed"), LegroomError, "not for JAX"),
     (lambda: legroom.estimate(wide(), 8, data=(np.zeros((8, 3)), np.zeros(8))), LegroomError,
      "can't be compiled for shapes alone"),
     (lambda: legroom.plan(wide(), 8, memory="1MB"), CannotFitError, "No batch size helps"),
     (lambda: legroom.plan(wide(), 64, memory="32MB"), CannotFitError, "one sample at a time")],
    ids=["not compiled", "not built", "eager", "probed", "other data", "too little", "slices"],
)  # fmt: skip
def test_what_is_wrong_is_said(ask, kind, words):
    with pytest.raises(kind, match=words):
        ask()


def never_built():
    model = Own()
    model.compile("adam", LOGITS)
    return model


def test_one_that_was_never_built_is_built_by_shapes_where_data_are_shown():
    model = never_built()
    made = legroom.estimate(model, 16, data=data_for(model, 4))
    assert made.breakdown["weights"] == 4 * (64 * 2048 + 2048 + 2048 * 10 + 10)
    assert not model.built
    assert not model.first.built


def test_slices_are_planned_and_hold_sums_of_gradients():
    model = wide()
    whole = legroom.estimate(model, 2048)
    made = legroom.plan(model, 2048, memory=int(0.8 * whole.peak_bytes))
    assert 1 <= made.slice_size < 2048
    assert made.chosen.peak_bytes <= made.budget_bytes
    assert made.chosen.peak_bytes > 2 * whole.breakdown["weights"] + whole.breakdown["optimizer"]
    assert not made.chosen.recompute
    assert legroom.plan(model, 2048, memory=2 * whole.peak_bytes).slice_size is None


@on_linux
def test_the_largest_batch_fits_and_the_next_does_not():
    model = wide()
    budget = 90_000_000
    found = legroom.largest_batch(model, memory=budget)
    assert real_peak(wide(), found) <= 1.02 * budget
    assert real_peak(wide(), int(1.2 * found)) > 0.96 * budget


def test_what_would_need_less_is_told():
    model = convolutional()
    told = legroom.explain("RESOURCE_EXHAUSTED: Out of memory allocating 261875814 bytes.",
                           model=model, batch_size=64)  # fmt: skip
    told = " ".join(str(told).split())
    assert "A batch of 32 instead of 64" in told
    assert "predicted to need about" in told
