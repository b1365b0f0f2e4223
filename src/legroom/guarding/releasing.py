"""Under ``legroom run``, what a training has left behind goes before the next one begins."""

from __future__ import annotations

import gc

from legroom.backends.base import current
from legroom.core.events import Event, TrainingFinished, TrainingStarted
from legroom.machine.memory import host_available
from legroom.machine.process import ResidentMemory, return_freed_pages

__all__ = ["BetweenTrainings"]

_GROWN = 0.005  # more than after the last collection; what waits longer ends up among what stays


class BetweenTrainings:
    """A listener that lets graphs go after each `fit`, and collects them before the next.

    Before the next and not at once: by then the script has dropped the old model, if it does. A
    collection takes a good part of a second, so it is made where memory has grown since the last
    one, and not between the many short calls of one model. Nothing that a script can see is
    touched: no names, no random states.
    """

    def __init__(self) -> None:
        self._resident = ResidentMemory()
        self._base = self._resident()

    def __call__(self, event: Event) -> None:
        """Act where a `fit` begins or ends."""
        match event:
            case TrainingFinished(method="fit"):
                current().growth.unpin()
            case TrainingStarted(method="fit") if self._has_grown():
                current().growth.forget_kernels()
                gc.collect()
                return_freed_pages()
                self._base = self._resident()

    def _has_grown(self) -> bool:
        return self._resident() - self._base > min(_GROWN * self._base, host_available() / 10)
