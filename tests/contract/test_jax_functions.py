"""Steps by hand on JAX (`jax.jit`, optax): in slices they are the step of the whole batch."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
pytest.importorskip("flax")
import jax.numpy as jnp  # noqa: E402
from flax import linen, nnx  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

import legroom  # noqa: E402
from legroom.core.events import listening  # noqa: E402

pytestmark = pytest.mark.on_jax("needs no Keras")

RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(n, 12)).astype("float32"), RNG.integers(0, 5, n)) for n in (11, 11, 7)]
CROSS_ENTROPY = optax.softmax_cross_entropy_with_integer_labels


def net():
    shapes = {"one": (12, 24), "two": (24, 24), "out": (24, 5)}
    rng = np.random.default_rng(1)
    weights = {k: jnp.asarray(rng.normal(size=s) * 0.3, "float32") for k, s in shapes.items()}
    return {**weights, "zero": jnp.zeros(5)}


def logits(weights, x):
    hidden = jnp.tanh(jnp.tanh(x @ weights["one"]) @ weights["two"])
    return hidden @ weights["out"] + weights["zero"]


def dropped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.6, x.shape), x / 0.6, 0)


def mean(weights, x, y, key):
    return CROSS_ENTROPY(logits(weights, x), y).mean()


def total(weights, x, y, key):
    return CROSS_ENTROPY(logits(weights, x), y).sum() / 64


def masked(weights, x, y, key):
    """As of padded text: of the samples with two of the labels nothing counts."""
    counts = (y > 1).astype("float32")
    return (CROSS_ENTROPY(logits(weights, x), y) * counts).sum() / jnp.maximum(counts.sum(), 1)


def decayed(weights, x, y, key):
    return mean(weights, x, y, key) + 0.01 * optax.tree.norm(weights, squared=True)


def dropout(weights, x, y, key):
    return mean(weights, dropped(key, x), y, key)


def keys_for_each(weights, x, y, key):
    keys = jax.random.split(key, len(x))
    return mean(weights, x + jax.vmap(lambda k: jax.random.normal(k, (12,)))(keys), y, key)


def recurrent(weights, x, y, key):
    def cell(state, column):
        state = jnp.tanh(state @ weights["two"] + column[:, None])
        return state, state

    state, _ = jax.lax.scan(cell, jnp.zeros((len(x), 24)), x.T)
    return CROSS_ENTROPY(state @ weights["out"] + weights["zero"], y).mean()


def recomputed(weights, x, y, key):
    return jax.checkpoint(mean)(weights, x, y, key)


def half(weights, x, y, key):
    low = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    return CROSS_ENTROPY(logits(low, x.astype(jnp.bfloat16)).astype("float32"), y).mean()


def normed(weights, x, y, key):
    """Samples that know of each other, as by BatchNorm."""
    with jax.named_scope("norm"):
        x = jnp.tanh(x @ weights["one"])
        x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    return CROSS_ENTROPY(x @ weights["two"] @ weights["out"], y).mean()


def contrastive(weights, x, y, key):
    made = x @ weights["one"]
    return CROSS_ENTROPY(made @ made.T, jnp.arange(len(x))).mean()


def mixed(weights, x, y, key):
    order = jax.random.permutation(key, len(x))
    return CROSS_ENTROPY(logits(weights, 0.7 * x + 0.3 * x[order]), y).mean()


def printed(weights, x, y, key):
    jax.debug.callback(lambda _: None, x.sum())
    return mean(weights, x, y, key)


@dataclass
class Case:
    """A step: how the loss is computed, and by what the weights are moved."""

    loss: Any
    moves: Any
    donates: bool = False

    def make(self):
        def step(weights, slots, batch, key):
            loss, gradients = jax.value_and_grad(self.loss)(weights, *batch, key)
            updates, slots = self.moves.update(gradients, slots, weights)
            weights = optax.apply_updates(weights, updates)
            return weights, slots, {"loss": loss, "norm": optax.tree.norm(gradients)}

        return jax.jit(step, donate_argnums=(0, 1) if self.donates else ())


def train(step, case):
    weights = net()
    slots = case.moves.init(weights)
    told = []
    for number, batch in enumerate(BATCHES * 2):
        key = jax.random.fold_in(jax.random.key(3), number)
        weights, slots, logs = step(weights, slots, batch, key)
        told.append(jax.tree.map(float, logs))
    return jax.tree.map(np.asarray, (weights, slots)), told


def sliced_sizes(events):
    return {event.data["slice_size"] for event in events if event.name == "plan"}


def notes(events):
    return [event.text for event in events if event.name == "note"]


ADAM = optax.adam(0.01, eps=1e-3)
CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.01, eps=1e-3))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("case", "near"),
    [
        (Case(mean, optax.sgd(0.1, momentum=0.9)), 1e-6),
        (Case(mean, ADAM, donates=True), 1e-5),
        (Case(total, optax.sgd(0.1)), 1e-6),
        (Case(masked, CLIPPED), 1e-5),
        (Case(decayed, optax.MultiSteps(optax.sgd(0.1), 2)), 1e-6),
        (Case(dropout, optax.sgd(0.1)), 1e-6),
        (Case(keys_for_each, optax.sgd(0.1)), 1e-6),
        (Case(recurrent, ADAM), 1e-5),
        (Case(recomputed, ADAM), 1e-5),
        (Case(half, optax.sgd(0.1)), 5e-3),
    ],
    ids=lambda value: value.loss.__name__ if isinstance(value, Case) else "",
)
def test_the_same_step(case, near, size):
    plain, told = train(case.make(), case)
    events = []
    with listening(events.append):
        sliced, told_too = train(legroom.step(slice_size=size)(case.make()), case)
    assert sliced_sizes(events) == {size}
    assert not notes(events)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(sliced), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=near, rtol=near)
    for one, other in zip(told, told_too, strict=True):
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=max(near, 1e-5))
        np.testing.assert_allclose(one["norm"], other["norm"], rtol=max(near, 1e-4))


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (contrastive, "slices do not make up what it does with the whole batch"),
        (mixed, "slices do not make up what it does with the whole batch"),
        (printed, "it prints or calls Python while it runs"),
    ],
)
def test_what_slices_would_change_runs_whole(loss, why):
    case = Case(loss, ADAM)
    plain, _ = train(case.make(), case)
    events = []
    with listening(events.append):
        whole, _ = train(legroom.step(slice_size=4)(case.make()), case)
    assert [why in note for note in notes(events)] == [True]
    assert not sliced_sizes(events)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_mixes_samples_is_named_and_left_whole_if_asked_to():
    case = Case(normed, ADAM)
    events = []
    with listening(events.append):
        train(legroom.step(slice_size=4)(case.make()), case)
    assert ["norm mixes the samples of a batch" in note for note in notes(events)] == [True]
    assert sliced_sizes(events) == {4}
    plain, _ = train(case.make(), case)
    events.clear()
    with listening(events.append):
        whole, _ = train(legroom.step(slice_size=4, exact=True)(case.make()), case)
    assert not sliced_sizes(events)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)


def test_results_of_all_kinds():
    @jax.jit
    def step(weights, x, y):
        made = logits(weights, x)
        right = made.argmax(-1) == y
        return {
            "each": made, "flat": made.reshape(-1), "right": right.sum(), "share": right.mean(),
            "most": made.max(), "least": x.min(), "any": right.any(), "weights": weights,
            "one": 1.5, "batch": x, "count": len(x),
        }  # fmt: skip

    x, y = BATCHES[0]
    plain, sliced = step(net(), x, y), legroom.step(slice_size=3)(step)(net(), x, y)
    assert jax.tree.structure(plain) == jax.tree.structure(sliced)
    for name in plain:
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6),
            plain[name], sliced[name],
        )  # fmt: skip


def test_what_is_given_away_and_returned_as_it_was():
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(state, x, y):
        gradients = jax.grad(mean)(state["weights"], x, y, None)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], gradients)
        return {**state, "weights": weights}, x

    for x, y in BATCHES:
        ends = []
        for one in (step, legroom.step(slice_size=4)(step)):
            state = {"weights": net(), "frozen": jnp.arange(3), "key": jax.random.PRNGKey(1)}
            ends.append(one(state, jnp.asarray(x), y))
        for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_arguments_of_all_kinds():
    @functools.partial(jax.jit, static_argnums=(0,), static_argnames=("scale",))
    def step(apply, weights, rate, scale=1.0, *, batch):
        def loss(weights):
            return scale * CROSS_ENTROPY(apply(weights, batch["x"]), batch["y"]).mean()

        gradients = jax.grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradients)

    plain, sliced = net(), net()
    guarded = legroom.step(slice_size=4)(step)
    events = []
    with listening(events.append):
        for scale in (1.0, 2.0):
            for number, (x, y) in enumerate(BATCHES):
                batch = {"x": x, "y": y, "key": jax.random.PRNGKey(0)}
                plain = step(logits, plain, 0.1 * number, scale, batch=batch)
                sliced = guarded(logits, sliced, 0.1 * number, scale, batch=batch)
    assert sliced_sizes(events) == {4}
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(sliced), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_first_batch_that_shows_nothing():
    @jax.jit
    def step(weights, x, y):
        gradients = jax.grad(mean)(weights, x, y, None)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    x, y = BATCHES[0]
    guarded, plain, sliced = legroom.step(slice_size=2)(step), net(), net()
    events = []
    with listening(events.append):
        for samples in (1, 3, 11):
            plain = step(plain, x[:samples], y[:samples])
            sliced = guarded(sliced, x[:samples], y[:samples])
    assert any(e.name == "plan" and e.data["batch_size"] == 11 for e in events)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(sliced), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_state_whose_shapes_change_is_another_step():
    @jax.jit
    def step(weight, x):
        return weight - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(weight)

    guarded = legroom.step(slice_size=2)(step)
    for width in (3, 6, 3):
        x = np.ones((8, width), "float32")
        weight = np.full((width,), 0.5, "float32")
        np.testing.assert_allclose(guarded(weight, x), step(weight, x), atol=1e-6)


def test_within_a_larger_program_it_is_the_function_itself():
    guarded = legroom.step(slice_size=2)(jax.jit(lambda x: x * 2))
    assert float(jax.jit(lambda x: guarded(x).sum())(np.ones(4, "float32"))) == 8


def test_what_jit_gives_is_there():
    guarded = legroom.step(jax.jit(mean))
    assert guarded.__name__ == "mean"
    assert "tanh" in guarded.lower(net(), *BATCHES[0], jax.random.key(0)).as_text()


@jax.jit
def by_name(x):
    return x + 1


by_name = legroom.step(by_name)


def test_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(by_name)) is by_name


def test_what_is_not_compiled_runs_as_it_is():
    events = []
    with listening(events.append):
        step = legroom.step(mean)
    assert step is mean
    assert ["put @jax.jit below @legroom.step" in note for note in notes(events)] == [True]


@pytest.mark.parametrize("graph", [True, False])
def test_flax_nnx(graph):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.one = nnx.Linear(12, 16, rngs=rngs)
            self.drop = nnx.Dropout(0.4, rngs=rngs)
            self.two = nnx.Linear(16, 5, rngs=rngs)

        def __call__(self, x):
            return self.two(self.drop(jnp.tanh(self.one(x))))

    def trained(decorate):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
        metrics = nnx.MultiMetric(hits=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))

        @decorate
        @nnx.jit(graph=graph)
        def step(model, optimizer, metrics, x, y):
            def loss(model):
                made = model(x)
                return CROSS_ENTROPY(made, y).mean(), made

            (value, made), gradients = nnx.value_and_grad(loss, has_aux=True)(model)
            metrics.update(loss=value, logits=made, labels=y)
            optimizer.update(model, gradients)
            return value

        for batch in BATCHES:
            step(model, optimizer, metrics, *batch)
        told = [float(x) for x in metrics.compute().values()]
        state = jax.tree.leaves(nnx.state((model, optimizer)))
        return [np.asarray(x, "float64") for x in state if x.dtype == "float32"], told

    plain, told = trained(lambda step: step)
    events = []
    with listening(events.append):
        sliced, told_too = trained(legroom.step(slice_size=4))
    assert sliced_sizes(events) == {4}
    assert not notes(events)
    np.testing.assert_allclose(told, told_too, rtol=1e-5)
    for one, other in zip(plain, sliced, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("moves", [ADAM, CLIPPED])
def test_flax_linen(moves):
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train=True):
            x = linen.Conv(8, (3,))(x[..., None])
            x = linen.LayerNorm()(linen.relu(x)).reshape(len(x), -1)
            x = linen.Dropout(0.3, deterministic=not train)(x)
            return linen.Dense(5)(x)

    net = Net()
    variables = net.init(jax.random.key(0), BATCHES[0][0], train=False)

    @jax.jit
    def step(state, batch, rng):
        def loss(weights):
            rngs = {"dropout": jax.random.fold_in(rng, state.step)}
            made = state.apply_fn({"params": weights}, batch["image"], rngs=rngs)
            return CROSS_ENTROPY(made, batch["label"]).mean(), made

        (value, made), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        logs = {"loss": value, "accuracy": (made.argmax(-1) == batch["label"]).mean()}
        return state.apply_gradients(grads=gradients), logs

    events, ends = [], []
    with listening(events.append):
        for one in (step, legroom.step(slice_size=4)(step)):
            state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=moves)
            for x, y in BATCHES:
                state, logs = one(state, {"image": x, "label": y}, jax.random.key(1))
            ends.append((state, logs))
    assert sliced_sizes(events) == {4}
    assert not notes(events)
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_loop_of_keras_without_fit():
    """As Keras's own guide to training loops in JAX has it."""
    code = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras, numpy as np, legroom

def train(decorate):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"),
                              keras.layers.Dropout(0.4), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(trained, others, x, y):
        made, others = model.stateless_call(trained, others, x, training=True)
        return loss_fn(y, made), others

    @decorate
    @jax.jit
    def step(state, x, y):
        trained, others, slots = state
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trained, others, x, y)
        trained, slots = optimizer.stateless_apply(slots, gradients, trained)
        return value, (trained, others, slots)

    state = ([v.value for v in model.trainable_variables],
             [v.value for v in model.non_trainable_variables],
             [v.value for v in optimizer.variables])
    rng = np.random.default_rng(0)
    for _ in range(4):
        x, y = rng.normal(size=(9, 6)).astype("float32"), rng.integers(0, 3, 9)
        value, state = step(state, x, y)
    return [np.asarray(a) for part in state for a in part]

plain, sliced = train(lambda f: f), train(legroom.step(slice_size=4))
print(max(float(np.abs(a.astype("float64") - b).max()) for a, b in zip(plain, sliced)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 1e-6
    assert "without legroom" not in done.stderr
    assert "runs whole" not in done.stderr


def test_plain_jax_brings_no_keras():
    code = """
import sys, jax, numpy as np, legroom
step = legroom.step(slice_size=2)(jax.jit(lambda w, x: w - 0.1 * (x @ w).mean()))
step(np.ones(3, "float32"), np.ones((4, 3), "float32"))
assert not {"keras", "tensorflow", "torch"} & set(sys.modules)
"""
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
