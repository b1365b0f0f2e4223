"""Large variables are written in place, as Keras writes them, and can be finished anywhere."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import legroom
from legroom.backends.tensorflow.commit import units
from legroom.backends.tensorflow.commit.in_turn import InTurn, can_stop_between
from legroom.backends.tensorflow.step import held_back

pytestmark = pytest.mark.on_tensorflow("is about graphs of TensorFlow")

O = keras.optimizers  # noqa: E741
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 12)).astype("float32")
Y = RNG.integers(0, 4, 64)
WORDS = RNG.integers(0, 30, (64, 12))
BATCH, EPOCHS = 16, 3
STEPS = EPOCHS * len(X) // BATCH

OPTIMIZERS = {
    "SGD": lambda: O.SGD(0.05),
    "momentum": lambda: O.SGD(0.05, momentum=0.9),
    "Nesterov, decaying": lambda: O.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD with a schedule": lambda: O.SGD(O.schedules.ExponentialDecay(0.05, 2, 0.9), momentum=0.5),
    "Adam": lambda: O.Adam(0.01),
    "AMSGrad, clipped": lambda: O.Adam(0.01, amsgrad=True, clipnorm=0.1),
    "AdamW, clipped": lambda: O.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "Adam with an average": lambda: O.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "Adam, scaled": lambda: O.LossScaleOptimizer(O.Adam(0.01), dynamic_growth_steps=3),
    "momentum, scaled": lambda: O.SGD(0.05, momentum=0.9, loss_scale_factor=128.0),
    "RMSprop": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda: O.Adagrad(0.01, clipvalue=0.05),
    "Adamax": lambda: O.Adamax(0.01),
    "Ftrl": lambda: O.Ftrl(0.05),
    "Lamb": lambda: O.Lamb(0.01),
    "Lion": lambda: O.Lion(0.001),
    "Adafactor": lambda: O.Adafactor(0.01),
}


def build(optimizer, *, table=False):
    """A small net; with a table, whose gradients are sparse."""
    keras.utils.set_random_seed(3)
    first = [layers.Embedding(30, 3), layers.Flatten()] if table else []
    model = keras.Sequential(
        [
            keras.Input((12,)),
            *first,
            layers.Dense(9, "relu", kernel_constraint=keras.constraints.MaxNorm(1.5)),
            layers.BatchNormalization(),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer](), loss)
    return model


def state(model):
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def assert_same(model, plain):
    for mine, expected in zip(state(model), state(plain), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def fit(train, x=X):
    keras.utils.set_random_seed(5)
    return train(x, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0)


@pytest.fixture
def all_large(monkeypatch):
    """Have variables of any size count as large, but for the biases."""
    monkeypatch.setattr(held_back, "_SMALL_STATE", 0)
    monkeypatch.setattr(units, "_LARGE", 4 * 4 * 9)


@pytest.fixture
def writes(monkeypatch):
    """What each write in turn does before it is made; it is told the write's number."""
    hooks = []
    original = InTurn.write

    def write(self, make):
        number = self._count + 1
        if tf.executing_eagerly() or number <= self._skip:
            return original(self, make)  # a trial of the optimizer, or done before

        def before():
            for hook in hooks:
                hook(number)
            return np.int32(0)

        with tf.control_dependencies(self.told):
            called = tf.numpy_function(before, [], tf.int32)
        with tf.control_dependencies([called]):
            return original(self, make)

    monkeypatch.setattr(InTurn, "write", write)
    return hooks


SHORT = {"Nesterov, decaying", "AdamW, clipped", "Adam, scaled"}


@pytest.mark.parametrize(
    "optimizer",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS],
)
def test_the_same_wherever_a_write_fails(all_large, writes, optimizer):
    check_it_is_the_same(writes, build(optimizer), build(optimizer), X)


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad", "Lion"])
def test_with_sparse_gradients_too(all_large, writes, monkeypatch, optimizer):
    made = []
    of = units.Units.of
    monkeypatch.setattr(units.Units, "of", lambda *args: made.append(of(*args)) or made[-1])
    model = build(optimizer, table=True)
    check_it_is_the_same(writes, build(optimizer, table=True), model, WORDS)
    assert model.trainable_variables[0] is model.layers[0].embeddings
    assert all(any(unit.in_turn and unit.members == [0] for unit in one) for one in made)
    assert made


def check_it_is_the_same(writes, plain, model, x):
    """Train with a failure at another write in each step."""
    history = fit(plain.fit, x)
    seen = {"step": -1, "writes": 0, "failed": 0}

    def fail_at_another_place_in_each_step(number):
        """The first step fails at its second write, the second one at its third, and so on."""
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        step = int(inner.iterations.numpy())
        if seen["step"] != step:
            seen.update(step=step, writes=0)
        seen["writes"] += 1
        if seen["writes"] == step + 2:
            seen.update(failed=seen["failed"] + 1, writes=STEPS + 2)  # once in a step
            raise MemoryError  # which TensorFlow makes an error of its own of

    writes.append(fail_at_another_place_in_each_step)
    guarded = fit(lambda *args, **options: legroom.fit(model, *args, **options), x)
    assert_same(model, plain)
    assert guarded.history["loss"] == pytest.approx(history.history["loss"])
    assert seen["writes"] <= STEPS + 1, "no step was long enough not to fail"
    assert seen["failed"] == seen["writes"] - 1 >= 2  # the last step is a sound one


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW, clipped", "RMSprop", "Adafactor"])
def test_nothing_runs_while_a_variable_is_written(all_large, monkeypatch, optimizer):
    """Who fails beside a write keeps TensorFlow from noting it, and it would be made twice."""
    seen = []  # graphs, and the writes in them
    make = InTurn.write

    def noted(self, write):
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = [] if graph is None else graph.get_operations()
        make(self, write)
        if graph is not None:
            new = [op for op in graph.get_operations() if op not in before]
            writing = [op for op in new if op.type.startswith(("Assign", "ResourceApply"))]
            seen.append((graph, writing[0]))

    monkeypatch.setattr(InTurn, "write", noted)
    model = build(optimizer)
    fit(lambda *args, **options: legroom.fit(model, *args, **options))
    assert len(seen) >= 2
    for graph, write in seen:
        operations = graph.get_operations()  # each after those that it waits for
        before = {}
        for op in operations:
            waits = {*op.control_inputs, *(tensor.op for tensor in op.inputs)}
            before[op] = waits.union(*(before[other] for other in waits))
        after = {op for op in operations if write in before[op]}
        beside = set(operations) - after - before[write] - {write}
        assert {op.type for op in beside} <= {"Placeholder", "Const", "NoOp", "Identity"}


def test_what_needs_an_old_value_after_it_is_overwritten_is_not_written_in_turn():
    """Adadelta moves its second slot before the variable, by what the slot was."""
    assert can_stop_between(O.Adam(), rank=2)
    assert not can_stop_between(O.Adadelta(), rank=2)


def test_an_update_that_has_no_room_is_not_begun(all_large, monkeypatch, writes):
    made = []
    writes.append(made.append)
    monkeypatch.setattr(units.Units, "scratch", lambda self, unit: 2**50)
    model, untrained = build("Adam"), build("Adam")
    with pytest.raises(legroom.CannotFitError):
        # Of a fixed size, so that nothing smaller is tried: each failure takes ten seconds.
        fit(lambda *args, **options: legroom.fit(model, *args, slice_size=BATCH, **options))
    assert not made
    for mine, first in zip(model.get_weights(), untrained.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, first)
