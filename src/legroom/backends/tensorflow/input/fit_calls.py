"""Follows what trainings of this process are given: calls of `fit`, and loops over data sets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from legroom.backends import patches
from legroom.backends.parts import DATASET, TRAINER
from legroom.backends.tensorflow.growth.hooks import user_place
from legroom.backends.tensorflow.input.fit_data import fitted_data

__all__ = ["OnFit", "fitted_data", "follow_fits", "follow_iterations"]

# Called with the model, its data, the other arguments and the line; returns who is told of epochs.
OnFit = Callable[[Any, Any, dict[str, Any], str], list[Any]]


def follow_fits(on_fit: OnFit) -> None:
    """Have a function called whenever a Keras model is trained by `fit`."""

    def followed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
            place = user_place() or ""
            names = ("y", "batch_size", "epochs", "verbose", "callbacks")
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            y = arguments.get("y")
            followers = on_fit(self, x if y is None else (x, y), arguments, place)
            if len(args) < len(names):
                given = arguments.get("callbacks") or []
                if not isinstance(given, keras.callbacks.CallbackList):
                    own = list(given) if isinstance(given, (list, tuple)) else [given]
                    kwargs["callbacks"] = [*own, *map(_Follower, followers)]
            return original(self, x, *args, **kwargs)

        return fit

    patches.put(__name__, TRAINER, "fit", followed)


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


class _Follower(keras.callbacks.Callback):
    """Passes on what Keras tells."""

    def __init__(self, follower: Any) -> None:
        super().__init__()
        self._follower = follower

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch has ended."""
        self._follower.epoch_ended()

    def on_train_end(self, logs: Any = None) -> None:
        """The training has ended."""
        self._follower.ended()
