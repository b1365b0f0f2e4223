"""What a step changes before its update, kept so that a step that fails has done nothing.

BatchNorm's statistics, metrics, seeds and the like are small, and are copied before every step, in
two launches whatever their number. Weights and what optimizers keep are large; `tail` looks after
those.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from legroom.backends.torch.device.pool import Pool

__all__ = ["Undo"]

# Larger buffers are kept only if steps are seen to change them: masks and tables stay as they are.
_LARGE = 2**20


class Undo:
    """Small state, as it was before a step.

    Args:
        tensors: The tensors that a step may change before its update.
        pool: The device, whose random numbers are drawn from.
        own_draws: Whether the step may draw from the generators of Python and NumPy.
        keras_seeds: Those of the tensors that are seeds of Keras's layers.
        generators: Generators of PyTorch's that the step draws from beside its own ones.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        pool: Pool,
        *,
        own_draws: bool = False,
        keras_seeds: Sequence[Any] = (),
        generators: Sequence[Any] = (),
    ) -> None:
        self._all = list({id(tensor): tensor for tensor in tensors}.values())
        self.pool = pool
        self._own_draws = own_draws
        self._generators = list(generators)
        self._kept = [x for x in self._all if x.nbytes <= _LARGE]
        self._large = [x for x in self._all if x.nbytes > _LARGE]
        self._versions: list[int] = []
        self._twins: list[Any] = []
        self._seeds: list[Any] = []
        self._looked = False
        self._keras_seeds = {id(seed) for seed in keras_seeds}
        self._noted: list[tuple[Any, Any]] = []

    @torch.no_grad()
    def save(self) -> None:
        """Keep what is there now."""
        if self._large and not self._looked:
            self._kept, self._large = [*self._kept, *self._large], []
        if len(self._twins) != len(self._kept):
            self._twins = [tensor.detach().clone() for tensor in self._kept]
        elif self._kept:
            torch._foreach_copy_(self._twins, self._kept)
        self._versions = [tensor._version for tensor in self._kept]
        self._seeds = self.seeds_now()

    def seeds_now(self) -> list[Any]:
        """Where the random generators are."""
        seeds: list[Any] = [torch.get_rng_state()]
        if self.pool.device.type != "cpu":
            seeds.append(self.pool.seeds())
        if self._own_draws:
            seeds += [random.getstate(), np.random.get_state()]
        return [*seeds, *(generator.get_state() for generator in self._generators)]

    def settle(self) -> None:
        """A step went through: large tensors that it has not changed are not kept any more."""
        if self._looked:
            return
        self._looked = True
        changed = [
            tensor.nbytes <= _LARGE or tensor._version != version
            for tensor, version in zip(self._kept, self._versions, strict=True)
        ]
        self._twins = [x for x, keep in zip(self._twins, changed, strict=True) if keep]
        self._kept = [x for x, keep in zip(self._kept, changed, strict=True) if keep]

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        if self._kept:
            torch._foreach_copy_(self._kept, self._twins)
        self.restore_seeds()

    def restore_seeds(self) -> None:
        """Put the random generators back."""
        self.set_seeds(self._seeds)

    def set_seeds(self, seeds: Sequence[Any]) -> None:
        """Put the random generators where they were."""
        torch.set_rng_state(seeds[0])
        rest = list(seeds[1:])
        if self.pool.device.type != "cpu":
            self.pool.set_seeds(rest.pop(0))
        if self._own_draws:
            random.setstate(rest.pop(0))
            np.random.set_state(rest.pop(0))
        for generator, state in zip(self._generators, rest, strict=True):
            generator.set_state(state)

    @torch.no_grad()
    def restore_keras_seeds(self) -> None:
        """Put the seeds of Keras's layers back: a slice begins with those of its step."""
        for tensor, twin in zip(self._kept, self._twins, strict=True):
            if id(tensor) in self._keras_seeds:
                tensor.copy_(twin)

    def note_seeds(self) -> None:
        """Note where Keras's seeds are: after one slice they are where the step leaves them."""
        self._noted = [
            (tensor, tensor.detach().clone())
            for tensor in self._kept
            if id(tensor) in self._keras_seeds
        ]

    @torch.no_grad()
    def restore_noted_seeds(self) -> None:
        """Put them there."""
        for tensor, value in self._noted:
            tensor.copy_(value)
        self._noted = []

    def changed(self) -> list[tuple[Any, Any]]:
        """The tensors that are others now, each with what it was."""
        return [
            (tensor, twin)
            for tensor, twin, version in zip(self._kept, self._twins, self._versions, strict=True)
            if tensor._version != version
        ]
