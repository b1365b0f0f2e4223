"""Being asked to stop while a training runs: at the next moment when all is consistent.

SIGTERM is how a machine says that it will be taken away; SIGINT is Ctrl-C. Both are noted, and
answered between two batches. A second SIGINT is answered at once, as Python does it.

A process that is forked meanwhile, to load data, is no training: it dies by signals as it would
without legroom. Keras ends its workers by SIGTERM, and waits until they are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["Stopping"]

# What Python does by itself.
_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}
_listening: list[Stopping] = []


class Stopping:
    """Listens for signals that ask to stop, in the context of a training.

    Only where nobody else does: a script that handles a signal itself goes on doing so.

    Attributes:
        asked: The signal that came, if one did.
        waiting_pays: Whether a consistent moment will come by itself soon: batches are running.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.waiting_pays = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the context lasts."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) == default:
                signal.signal(number, self._note)
        _listening.append(self)
        try:
            yield
        finally:
            _listening.remove(self)
            self._leave()
            asked, self.asked = self.asked, None
            if asked is not None:
                self._answer(asked)

    def answer(self) -> None:
        """Stop, if that was asked for: by SIGTERM as a process does, by SIGINT as Python does.

        Raises:
            KeyboardInterrupt: If it was SIGINT.
        """
        asked, self.asked = self.asked, None
        if asked is not None:
            self._answer(asked)

    def _leave(self) -> None:
        for number, default in _DEFAULTS.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, default)

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        asked = signal.Signals(number)
        if asked == signal.SIGINT and (self.asked is not None or not self.waiting_pays):
            self.asked = None
            signal.default_int_handler(number, frame)
        if self.asked is None:
            self.asked = asked

    @staticmethod
    def _answer(asked: signal.Signals) -> None:
        if asked == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(asked, signal.SIG_DFL)
        os.kill(os.getpid(), asked)


def _leave_in_child() -> None:
    while _listening:
        _listening.pop()._leave()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_leave_in_child)
