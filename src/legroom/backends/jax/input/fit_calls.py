"""Follows what trainings of this process are given: calls of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from legroom.backends.jax.step.batch import batch_size
from legroom.backends.keras.input import fit_calls
from legroom.backends.keras.input.fit_calls import OnFit, fitted_arrays
from legroom.backends.parts import JAX_TRAINER
from legroom.core.errors import UnsupportedModelError

__all__ = ["fitted_data", "follow_fits", "follow_iterations"]


def follow_fits(on_fit: OnFit) -> None:
    """Have a function called whenever a Keras model is trained by `fit`."""
    fit_calls.follow_fits(JAX_TRAINER, on_fit)


def follow_iterations(on_iteration: Callable[[Any, str], None]) -> NoReturn:
    """Have a function called whenever the user's own code begins to go through data."""
    raise UnsupportedModelError("legroom can't follow loops over data on JAX yet.")


def fitted_data(
    x: Any, y: Any = None, sample_weight: Any = None, size: int | None = None
) -> tuple[int | None, Any]:
    """The size of a batch, None where it can't be told; and one, or what shows its shapes."""
    return fitted_arrays(x, y, sample_weight, size, batch_size)
