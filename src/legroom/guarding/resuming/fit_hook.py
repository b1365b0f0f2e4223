"""Tells when a training that is kept begins, and each of its epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from legroom.core.events import EpochStarted, emit
from legroom.guarding.showing.sampling import sampler

__all__ = ["Hook", "as_list", "with_hook"]


class Hook(keras.callbacks.Callback):
    """Tells when training and epochs begin. No batch hooks: those would slow Keras down.

    Args:
        train_begins: Called when all other callbacks of the user have begun.
        epoch_begins: Called with the number of an epoch that begins.
    """

    def __init__(
        self, train_begins: Callable[[], None], epoch_begins: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._train_begins = train_begins
        self._epoch_begins = epoch_begins

    def on_train_begin(self, logs: Any = None) -> None:
        """All other callbacks of the user have begun."""
        self._train_begins()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        self._epoch_begins(epoch)
        known = self.params or {}
        emit(
            EpochStarted(
                epoch=epoch,
                epochs=known.get("epochs"),
                steps=known.get("steps"),
                steps_done=sampler.steps,
            )
        )


def with_hook(callbacks: Any, hook: Hook) -> Any:
    """What `fit` gets as callbacks, with one more behind the user's own."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(hook)
        return callbacks
    return [*as_list(callbacks), hook]


def as_list(callbacks: Any) -> list[Any]:
    """Callbacks, however they were given."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
