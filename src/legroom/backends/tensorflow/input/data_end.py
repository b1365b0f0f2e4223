"""What Keras's own training function does when its data has ended.

With a source whose length nobody knows, the end is noticed inside of the traced function, while
whatever needs no data already runs: the step is counted, weight decay is applied, random layers
move their seeds on. So plain `fit` takes a part of a step at the end of every such epoch. It is a
flaw, and it is in the weights that plain `fit` gives: with Adam or a schedule the next epoch's
steps are others. To be the same training, ours does the same, where the Keras at hand does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from legroom.backends.tensorflow.step.traits import all_ours

__all__ = ["AtTheEnd", "DataEnd", "keras_at_the_end"]


class DataEnd:
    """Takes the part of a step that needs no data, as Keras does.

    Args:
        model: The compiled model, before its first step.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._begin()

    def count(self, steps: int = 1) -> None:
        """Steps were taken."""
        self._steps += steps

    def reached(self) -> None:
        """The data has ended, where Keras would have asked for more of it in a graph."""
        model, optimizer = self._model, self._model.optimizer
        if model.run_eagerly or model.jit_compile or not self._steps:
            return
        if not keras_at_the_end(model.steps_per_execution).steps_on:
            return
        # How often a layer draws in a step is not written anywhere, but was seen.
        for seed in _seeds(model):
            state = seed.numpy()
            draws = (int(state[1]) - self._seeds.get(id(seed), 0)) / self._steps
            if draws.is_integer():
                state[1] += int(draws)
                seed.assign(state)
        self._begin()
        # With a loss scale everything waits for the gradients.
        if isinstance(optimizer, TFOptimizer) and not isinstance(optimizer, LossScaleOptimizer):
            optimizer._apply_weight_decay(model.trainable_variables)
            optimizer._iterations.assign_add(1)

    def _begin(self) -> None:
        self._steps = 0
        self._seeds = {id(seed): int(seed.numpy()[1]) for seed in _seeds(self._model)}


class AtTheEnd(NamedTuple):
    """What a Keras does when its data ends: versions differ.

    Attributes:
        steps_on: It takes a part of a step.
        forgets: It returns nothing of an execution of several steps that the end cuts short.
    """

    steps_on: bool
    forgets: bool


@functools.cache
def keras_at_the_end(steps_per_execution: int = 1) -> AtTheEnd:
    """What this Keras does when its data ends, by letting it train so for a moment."""
    # With names and zeros of its own: drawing either would shift those of the user's next model.
    dense = keras.layers.Dense(1, kernel_initializer="zeros", name="legroom_dense")
    model = keras.Sequential([keras.Input((1,), name="legroom_input"), dense], name="legroom_model")
    optimizer = keras.optimizers.SGD(0.0, name="legroom_sgd")
    model.compile(optimizer, "mse", jit_compile=False, steps_per_execution=steps_per_execution)
    one = tf.data.Dataset.from_tensors((tf.zeros((1, 1)), tf.zeros((1, 1))))
    of_unknown_length = one.filter(lambda x, y: tf.constant(True))
    iterator = iter(of_unknown_length)
    inspect.unwrap(type(model).make_train_function)(model)  # Keras's own, not the guarded one
    returned = 0
    with all_ours(), contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
        for _ in range(2):
            model.train_function(iterator)
            returned += 1
    return AtTheEnd(steps_on=int(optimizer.iterations.numpy()) == 2, forgets=returned == 0)


def _seeds(model: Any) -> list[Any]:
    found = {}
    for layer in model._flatten_layers():
        for variable in layer.variables:
            if variable.path.endswith("seed_generator_state"):
                found[id(variable)] = variable
    return list(found.values())
