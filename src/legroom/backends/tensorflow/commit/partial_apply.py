"""What Keras's `apply` does, done to some of its variables at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from keras import ops
from keras.src.optimizers.base_optimizer import global_norm
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from legroom.backends.keras.models.known_optimizers import inner_optimizer
from legroom.backends.tensorflow.commit.in_place import write_in_place
from legroom.backends.tensorflow.commit.in_turn import InTurn
from legroom.backends.tensorflow.commit.units import Unit
from legroom.backends.tensorflow.slices.row_sums import RowSums

__all__ = ["PartialApply"]


class PartialApply:
    """The parts of one optimizer's `apply`.

    Args:
        optimizer: The user's optimizer, built; with a loss scale around it or not.
        variables: Keras's variables.
        sums: By the variable's place, sparse gradients that come as sums of rows.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[Any], sums: Mapping[int, RowSums]
    ) -> None:
        self._outer = optimizer
        self._optimizer = inner_optimizer(optimizer)
        self._variables = variables
        self._sums = sums

    @property
    def scales(self) -> bool:
        """Whether there is a loss scale, with which an update is left out on overflow."""
        return isinstance(self._outer, LossScaleOptimizer)

    @property
    def shares(self) -> bool:
        """Whether a part has to know something of all gradients together."""
        return bool(self.scales or self._optimizer.global_clipnorm)

    def share(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """What all units need to know of all gradients together."""
        shared: dict[str, Any] = {}
        gradients = [
            self._sums[i].gradient() if i in self._sums else gradient
            for i, gradient in enumerate(gradients)
        ]
        if self.scales:
            shared["finite"] = self._outer.check_finite(gradients)
        if self._optimizer.global_clipnorm:
            norm = global_norm([None if g is None else self._unscaled(g) for g in gradients])
            # Keras's own scale, as it comes out for a gradient that is the norm itself.
            clipped = self._optimizer._clip_gradients([tf.reshape(norm, (1,))])[0][0]
            shared["clip"] = tf.where(norm == 0, tf.ones_like(norm), clipped / norm)
        return shared

    def write(
        self,
        unit: Unit,
        gradients: Sequence[Any],
        shared: Any,
        last: bool,
        turn: InTurn | None = None,
    ) -> None:
        """What Keras's `apply` does to the variables of a unit, in its order.

        All of it goes through the optimizer's own `assign`, `assign_add` and `assign_sub`.
        """
        optimizer, averaged = self._optimizer, self.averages()
        rate = optimizer.learning_rate
        for i, gradient in zip(unit.members, gradients, strict=True):
            variable = self._variables[i]
            if i in self._sums:
                gradient = self._sums[i].gradient()
            if gradient is not None:
                self._decay(variable)
                gradient = self._prepared(gradient, shared)
                if turn is not None and unit.by_kernel:
                    turn.catch_up()
                    turn.write(partial(write_in_place, optimizer, variable, gradient, rate))
                else:
                    with self._sums[i].shown() if i in self._sums else contextlib.nullcontext():
                        optimizer.update_step(gradient, variable, rate)
            if i in averaged:
                moved = ops.cast(ops.not_equal(optimizer.iterations, 0), variable.dtype)
                momentum = moved * optimizer.ema_momentum
                average = momentum * averaged[i] + (1 - momentum) * variable
                optimizer.assign(averaged[i], average)
            if gradient is not None and variable.constraint is not None:
                optimizer.assign(variable, variable.constraint(variable))
        if last:
            if self.scales:
                self._count_finite_step()
            optimizer.assign_add(optimizer._iterations, 1)

    def leave(self) -> None:
        """Only lower the loss scale: gradients have overflown."""
        self._outer._stateful_handle_non_finite_grads()

    def _unscaled(self, gradient: Any) -> Any:
        if isinstance(self._outer, LossScaleOptimizer):
            gradient = ops.divide(gradient, self._outer.dynamic_scale)
        factor = self._optimizer.loss_scale_factor
        return gradient if factor is None else gradient / factor

    def _prepared(self, gradient: Any, shared: Any) -> Any:
        """Unscaling and clipping, of one gradient at a time."""
        gradient = self._unscaled(gradient)
        if self._optimizer.global_clipnorm:
            return gradient * shared["clip"]
        return self._optimizer._clip_gradients([gradient])[0]

    def _decay(self, variable: Any) -> None:
        """Weight decay as Keras has it on TensorFlow."""
        optimizer = self._optimizer
        # What is left out may be named by a part of TensorFlow's name for it, which has the path.
        if optimizer.weight_decay is None or not optimizer._use_weight_decay(variable._value):
            return
        rate = ops.cast(optimizer.learning_rate, variable.dtype)
        decay = ops.cast(optimizer.weight_decay, variable.dtype)
        optimizer.assign_sub(variable, variable * decay * rate)

    def averages(self) -> dict[int, Any]:
        """The moving average of each variable that has one."""
        if not self._optimizer.use_ema:
            return {}
        averages = self._optimizer._model_variables_moving_average
        index = self._optimizer._get_variable_index
        return {
            i: averages[index(variable)]
            for i, variable in enumerate(self._variables)
            if averages[index(variable)] is not None
        }

    def _count_finite_step(self) -> None:
        """The loss scale's own bookkeeping after a step with finite gradients."""
        outer, write = self._outer, self._optimizer.assign
        full = ops.equal(outer.step_counter, outer.dynamic_growth_steps - 1)
        # The scale first: what the counter was tells what becomes of it.
        write(outer.dynamic_scale, ops.where(full, outer.dynamic_scale * 2.0, outer.dynamic_scale))
        write(outer.step_counter, ops.where(full, 0, outer.step_counter + 1))
