"""Writes snapshots while the training goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Writer"]


class Writer:
    """One thread that writes one thing at a time.

    It is not a daemon's work that may be cut at the end of the process: `wait` is called
    before a training returns. If the process is killed meanwhile, what was being written is not
    there, and the snapshot before it is.

    Args:
        failed: Called, in the thread, with the error of a write that failed.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return not self._idle.is_set()

    def write(self, task: Callable[[], Any]) -> None:
        """Have a task done in the background, once the one before it is through."""
        self.wait()
        self._idle.clear()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="legroom-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no memory for its stack
                self._thread = None
                self._do(task)
                self._idle.set()
                return
        self._tasks.put(task)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is being written.

        Returns:
            Whether that is so.
        """
        return self._idle.wait(seconds)

    def close(self) -> None:
        """Wait, and end the thread."""
        self.wait()
        if self._thread is not None and self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._do(task)
            del task  # with it go the copies of all weights
            self._idle.set()

    def _do(self, task: Callable[[], Any]) -> None:
        try:
            task()
        except Exception as error:
            self._failed(error)
