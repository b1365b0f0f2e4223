"""Optimizers that do something of their own: honoured, or the step runs whole and says why."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops, optimizers

from .comparing import VALUES, X, compare


class HalvesGradients(optimizers.Adam):
    """Its `apply` changes the gradients, by more than a factor."""

    def apply(self, grads, trainable_variables=None):
        grads = [g * ops.rsqrt(1e-2 + ops.mean(g**2)) for g in grads]
        return super().apply(grads, trainable_variables)


class Factor(optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        return super().apply([0.5 * g for g in grads], trainable_variables)


class Pairs(optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(0.5 * tf.sign(g), v) for g, v in grads_and_vars])

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is None:
            return super().apply(grads)
        return super().apply(grads, trainable_variables)


class TwiceApplied(optimizers.SGD):
    """Applies its gradients in two groups: one step, two calls of what it inherits."""

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables)
        if not self.built:
            self.build(variables)
        half = len(variables) // 2
        super().apply(grads[:half], variables[:half])
        super().apply(grads[half:], variables[half:])


class Decays(optimizers.SGD):
    def _apply_weight_decay(self, variables):
        for variable in variables:
            self.assign_sub(variable, 0.1 * ops.sign(ops.convert_to_tensor(variable)))


class OwnStep(optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * ops.sign(gradient) * ops.abs(gradient) ** 0.5)


class OnTheDevice(optimizers.Optimizer):
    """From scratch, by TensorFlow's own means: slots by reference, raw ops, no Keras variable."""

    def __init__(self, rate):
        super().__init__(learning_rate=rate)
        self.slots = {}

    def build(self, variables):
        super().build(variables)
        with tf.init_scope():
            for variable in variables:
                value = variable.value
                self.slots[value.ref()] = tf.Variable(tf.zeros(value.shape), trainable=False)

    def update_step(self, gradient, variable, learning_rate):
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle, accum=self.slots[variable.ref()].handle,
            lr=tf.cast(learning_rate, tf.float32), grad=gradient, momentum=0.9,
        )  # fmt: skip


class KeepsItself(optimizers.SGD):
    """Clips, filters and writes by methods of its own."""

    def _clip_gradients(self, grads):
        total = ops.sqrt(sum(ops.sum(g**2) for g in grads))
        return [g / (1.0 + total) for g in grads]


class Writes(optimizers.SGD):
    def assign_sub(self, variable, value):
        super().assign_sub(variable, 0.5 * value)


class Rates(optimizers.SGD):
    @property
    def learning_rate(self):
        return 0.1 / (1.0 + ops.cast(self.iterations, "float32"))


class Averages(optimizers.SGD):
    def _update_model_variables_moving_average(self, trainable_variables):
        for variable, average in zip(
            trainable_variables, self._model_variables_moving_average, strict=True
        ):
            average.assign(0.5 * average + 0.5 * ops.convert_to_tensor(variable) + 0.1)


class Lookahead(optimizers.Optimizer):
    """Steps with another optimizer, and every second time goes half the way back."""

    def __init__(self, inner):
        super().__init__(learning_rate=0.0)
        self.inner = inner

    def build(self, variables):
        super().build(variables)
        self.inner.build(variables)
        with tf.init_scope():
            self.slow = [keras.Variable(np.array(v), trainable=False) for v in variables]

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables)
        if not self.built:
            self.build(variables)
            self.built = True
        self.inner.apply(grads, variables)
        self.iterations.assign_add(1)
        back = ops.cast(ops.equal(self.iterations % 2, 0), "float32")
        for variable, slow in zip(variables, self.slow, strict=True):
            new = slow + 0.5 * (variable - slow)
            slow.assign(back * new + (1 - back) * slow)
            variable.assign(back * new + (1 - back) * variable)


class Scales(optimizers.LossScaleOptimizer):
    """Never lowers its scale below one."""

    def _stateful_handle_non_finite_grads(self):
        self.step_counter.assign(0)
        self.dynamic_scale.assign(ops.maximum(1.0, self.dynamic_scale * 0.25))


def shadowing():
    """An optimizer whose method was replaced on the object itself."""
    optimizer = optimizers.SGD(0.1)
    original = optimizer.update_step
    optimizer.update_step = lambda g, v, rate: original(0.5 * ops.sign(g), v, rate)
    return optimizer


def applied_by_hand():
    """An optimizer whose `apply` was replaced on the object itself."""
    optimizer = optimizers.SGD(0.1)
    original = optimizer.apply
    optimizer.apply = lambda g, v=None: original([0.5 * tf.sign(x) for x in g], v)
    return optimizer


def excluding():
    """Weight decay for all but one layer, which is named by a part of its path."""
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["second/"])
    return optimizer


def scheduled():
    """A rate that is a function of Python's."""
    calls = optimizers.SGD(0.1)
    rate = keras.Variable(0.1)
    calls.learning_rate = lambda: rate * 0.5
    return calls


CASES = {
    "apply": lambda: HalvesGradients(0.01),
    "apply, a factor": lambda: Factor(0.5),
    "apply_gradients": lambda: Pairs(0.1),
    "apply in groups": lambda: TwiceApplied(0.1),
    "_apply_weight_decay": lambda: Decays(0.1, weight_decay=0.01),
    "_apply_weight_decay alone": lambda: Decays(0.1),
    "update_step": lambda: OwnStep(0.1),
    "from scratch": lambda: OnTheDevice(0.1),
    "_clip_gradients": lambda: KeepsItself(0.5),
    "assign_sub": lambda: Writes(0.1),
    "learning_rate": lambda: Rates(0.1),
    "averages": lambda: Averages(0.1, use_ema=True),
    "wrapper": lambda: Lookahead(optimizers.Adam(0.05)),
    "inner apply": lambda: optimizers.LossScaleOptimizer(HalvesGradients(0.01)),
    "loss scale": lambda: Scales(optimizers.SGD(0.1), initial_scale=64.0),
    "on the object": shadowing,
    "apply on the object": applied_by_hand,
    "excluded by path": excluding,
    "rate by a function": scheduled,
    "accumulation": lambda: HalvesGradients(0.01, gradient_accumulation_steps=2),
    "ema overwrites": lambda: OwnStep(0.1, use_ema=True, ema_overwrite_frequency=2),
    "lion": lambda: optimizers.Lion(0.01),
    "muon": lambda: optimizers.Muon(0.01, weight_decay=0.5),
    "schedule free": lambda: optimizers.ScheduleFreeAdamW(0.01),
}  # fmt: skip


NEWER = {
    "muon": pytest.mark.since_keras("3.13", "has no Muon that runs on TensorFlow"),
    "schedule free": pytest.mark.since_keras("3.14", "has no ScheduleFreeAdamW"),
    **dict.fromkeys(
        ("from scratch", "apply on the object"),
        pytest.mark.on_tensorflow("is written with TensorFlow's own ops"),
    ),
    **dict.fromkeys(
        ("apply in groups", "wrapper"),
        pytest.mark.not_on_jax("Keras on JAX hands `apply` no variables"),
    ),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEWER[name]) if name in NEWER else name for name in CASES]
)
def test_optimizers_of_ones_own(name, eager):
    def build():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(6, "tanh", name="first"),
                layers.Dense(1, name="second"),
            ]
        )
        model.compile(CASES[name](), "mse", run_eagerly=eager)
        return model

    refused = "`apply` was replaced" if name == "apply on the object" else None
    compare(build, X, VALUES, refused=refused, epochs=2)
