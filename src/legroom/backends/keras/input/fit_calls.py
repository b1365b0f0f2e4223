"""What trainings of this process are given, where that is Keras's on any framework."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import keras

from legroom.backends import patches

__all__ = ["OnFit", "fitted_arrays", "follow_fits", "user_place"]

# Called with the model, its data, the other arguments and the line; returns who is told of epochs.
OnFit = Callable[[Any, Any, dict[str, Any], str], list[Any]]

_KERAS_DEFAULT = 32
_LIBRARIES = ("tensorflow", "torch", "keras", "legroom")


def follow_fits(trainer: str, on_fit: OnFit) -> None:
    """Have a function called whenever a Keras model is trained by `fit`.

    Args:
        trainer: The class that has `fit`, as the registry has it.
        on_fit: The function.
    """

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

    patches.put(__name__, trainer, "fit", followed)


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


def fitted_arrays(
    x: Any, y: Any, sample_weight: Any, size: int | None, batch_size: Callable[[Any], int | None]
) -> tuple[int | None, Any]:
    """The batch size, and the data as an estimate takes it.

    Args:
        x: As `fit` got it: arrays, a `PyDataset`, a generator.
        y: The targets, where they are apart.
        sample_weight: The weights, where they are apart.
        size: The batch size, where `fit` was told.
        batch_size: Tells how many samples a batch has.

    Returns:
        The size of a batch, None where it can't be told without reading one; and a batch, or
        what shows one's shapes.
    """
    if isinstance(x, keras.utils.PyDataset):
        first = x[0]
        return batch_size(first), first
    known = isinstance(x, (list, tuple, dict)) or hasattr(x, "__array__")
    if not known and hasattr(x, "__iter__"):
        # A generator gives its batches once; here that is the end of it, nothing is trained.
        first = next(iter(x))
        return batch_size(first), first
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    data = x if len(parts) == 1 and not isinstance(x, (list, tuple)) else parts
    return size or _KERAS_DEFAULT, data


def user_place(*, direct: bool = False) -> str | None:
    """The line of the user's that led here: the innermost frame that is no library's.

    Args:
        direct: Nothing if Keras or legroom lies between: it is not the user who does it.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        library = module.partition(".")[0]
        if library not in _LIBRARIES and not module.startswith(("contextlib", "functools")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if direct and library == "keras":
            return None
        frame = frame.f_back
    return None
