"""Follows what trainings of this process are given: calls of `fit`, and loops over data sets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from legroom.backends import patches
from legroom.backends.keras.input import fit_calls
from legroom.backends.keras.input.fit_calls import OnFit, user_place
from legroom.backends.parts import DATASET, TRAINER
from legroom.backends.tensorflow.input.fit_data import fitted_data

__all__ = ["fitted_data", "follow_fits", "follow_iterations"]


def follow_fits(on_fit: OnFit) -> None:
    """Have a function called whenever a Keras model is trained by `fit`."""
    fit_calls.follow_fits(TRAINER, on_fit)


def follow_iterations(on_iteration: Callable[[Any, str], None]) -> None:
    """Have a function called whenever the user's own code begins to go through a data set."""

    def followed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(self: Any) -> Any:
            place = user_place(direct=True)
            if place is not None:
                on_iteration(self, place)
            return original(self)

        return iterate

    patches.put(__name__, DATASET, "__iter__", followed)
