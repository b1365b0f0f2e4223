"""In which pieces an update is written, and how much memory each of them needs.

A piece is a large variable, written in place and each write counted (see `in_turn`), or a few
variables whose new values are all computed first and written after (see `overlay`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from legroom.backends.keras.models.known_optimizers import inner_optimizer, updates_by_variable
from legroom.backends.keras.models.reading import variable_bytes
from legroom.backends.tensorflow.commit.in_place import has_kernel, updates_in_place
from legroom.backends.tensorflow.commit.in_turn import can_stop_between
from legroom.backends.tensorflow.slices.row_sums import taken_of_rows

__all__ = ["Unit", "Units", "adds_rows_up", "works_in_units"]

# Variables are joined to units up to this size, or up to the largest variable where that is more:
# a unit for every bias would only add overhead.
_SMALL_UNIT = 4 * 2**20
# From this size on a variable that can be updated in place is a unit by itself.
_LARGE = _SMALL_UNIT


def works_in_units(optimizer: Any) -> bool:
    """Whether this optimizer's update is one of variables, each by itself."""
    inner = inner_optimizer(optimizer)
    if not isinstance(inner, TFOptimizer) or inner.gradient_accumulation_steps:
        return False
    if inner.use_ema and inner.ema_overwrite_frequency:
        return False
    if type(optimizer) is not LossScaleOptimizer and optimizer is not inner:
        return False
    if not all(isinstance(variable, Variable) for variable in inner._trainable_variables):
        return False  # TensorFlow's own variables, which no overlay sees
    if any(getattr(v, "overwrite_with_gradient", False) for v in inner._trainable_variables):
        return False
    if not updates_by_variable(inner):
        return False
    return not isinstance(inner._distribution_strategy, tf.distribute.MirroredStrategy)


def adds_rows_up(optimizer: Any) -> tuple[str, ...] | None:
    """What to add up of a sparse gradient's rows; None where the rows must be kept as they are."""
    if not works_in_units(optimizer) or optimizer is not inner_optimizer(optimizer):
        return None
    if optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue:
        return None  # clipping looks at the rows
    return None if optimizer.loss_scale_factor else taken_of_rows(optimizer)


@dataclasses.dataclass(frozen=True)
class Unit:
    """Variables that are written in one call.

    Attributes:
        members: The variables, by their places.
        in_turn: Whether it is one variable, written in place. Else all new values are computed
            beside the old ones and then written at once.
        by_kernel: Whether one op of TensorFlow's writes it.
    """

    members: list[int]
    in_turn: bool = False
    by_kernel: bool = False


class Units:
    """Takes an update apart.

    Args:
        optimizer: The user's optimizer, built; with a loss scale around it or not.
        variables: Keras's variables.
        beside: The places of variables that are never written in place.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any], beside: Collection[int]) -> None:
        self._inner = inner_optimizer(optimizer)
        self._sizes = [variable_bytes(variable) for variable in variables]
        self._slots = sum(map(variable_bytes, self._inner.variables)) / max(1, sum(self._sizes))
        inner = self._inner
        # What comes before the update itself takes memory too.
        self._prepares = bool(
            inner is not optimizer
            or inner.clipnorm
            or inner.global_clipnorm
            or inner.clipvalue
            or inner.loss_scale_factor
            or inner.weight_decay
        )
        large = {
            i: variable
            for i, variable in enumerate(variables)
            if self._sizes[i] >= _LARGE and i not in beside
        }
        kernels = bool(large) and updates_in_place(inner)
        self._kernels = {i for i, variable in large.items() if kernels and has_kernel(variable)}
        ranks = {len(variable.shape) for i, variable in large.items() if i not in self._kernels}
        able = {rank for rank in ranks if can_stop_between(inner, rank)}
        self._in_turn = self._kernels | {
            i for i, variable in large.items() if len(variable.shape) in able
        }
        # Without slots a sparse gradient's rows are all that is written, and can be at once.
        slots = self._slots >= 1
        self._ranks = {i: len(variable.shape) for i, variable in large.items()} if slots else {}
        self._able: dict[int, bool] = {}  # by rank, whether rows can be written in turn

    def of(self, gradients: Sequence[Any], present: Sequence[int]) -> list[Unit]:
        """The units for gradients like these, in their order.

        Args:
            gradients: One for each variable.
            present: The places of the variables that are updated.
        """
        kernels = {i for i in self._kernels if isinstance(gradients[i], tf.Tensor)}
        in_turn = [
            i
            for i in present
            if (i in self._in_turn if isinstance(gradients[i], tf.Tensor) else self._by_rows(i))
        ]
        units = [Unit([i], in_turn=True, by_kernel=i in kernels) for i in in_turn]
        units += self.beside([i for i in present if i not in in_turn])
        return sorted(units, key=lambda unit: -self.scratch(unit))

    def _by_rows(self, i: int) -> bool:
        """Whether a variable with a sparse gradient can be written in turn."""
        rank = self._ranks.get(i)
        if rank is not None and rank not in self._able:
            self._able[rank] = can_stop_between(self._inner, rank, sparse=True)
        return rank is not None and self._able[rank]

    def beside(self, present: Sequence[int]) -> list[Unit]:
        """Units that are written at once: small variables together, large ones by themselves."""
        room = max([_SMALL_UNIT, *(self._sizes[i] for i in present)])
        groups: list[list[int]] = []
        filled = 0
        for i in sorted(present, key=lambda i: -self._sizes[i]):
            if not groups or filled + self._sizes[i] > room:
                groups.append([])
                filled = 0
            groups[-1].append(i)
            filled += self._sizes[i]
        return [Unit(group) for group in groups]

    def scratch(self, unit: Unit) -> int:
        """About how much memory it needs to be written."""
        size = sum(self._sizes[i] for i in unit.members)
        if not unit.in_turn:
            return int((2 + self._slots) * size)  # the new values and something temporary
        if unit.by_kernel:
            return 2 * size if self._prepares else 0
        return 3 * size if self._prepares else 2 * size
