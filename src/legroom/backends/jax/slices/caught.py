"""Gradients caught on their way to the weights.

On JAX a step hands them to `stateless_apply`, together with the weights and the optimizer's own
variables, and goes on with the new ones. While it is caught, it goes on with the old ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from legroom.backends import patches
from legroom.backends.parts import OPTIMIZER

__all__ = ["Applied", "catching"]


@dataclasses.dataclass(frozen=True)
class Applied:
    """A call of `stateless_apply`.

    Attributes:
        optimizer: Whose.
        slots: The optimizer's variables, as it was given them.
        gradients: The gradients.
        weights: The weights, likewise.
    """

    optimizer: Any
    slots: list[Any]
    gradients: list[Any]
    weights: list[Any]


@contextlib.contextmanager
def catching(optimizers: Iterable[Any]) -> Iterator[list[Applied]]:
    """Have these optimizers change nothing for a while."""
    caught: list[Applied] = []
    with contextlib.ExitStack() as stack:
        for optimizer in optimizers:

            def stateless_apply(
                optimizer_variables: Any, grads: Any, trainable_variables: Any, own: Any = optimizer
            ) -> tuple[list[Any], list[Any]]:
                slots, weights = list(optimizer_variables), list(trainable_variables)
                caught.append(Applied(own, slots, list(grads), weights))
                return weights, slots

            stack.enter_context(
                patches.shadowed(optimizer, OPTIMIZER, "stateless_apply", stateless_apply)
            )
        yield caught
