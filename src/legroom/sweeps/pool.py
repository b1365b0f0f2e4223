"""Trials one by one, as somebody else asks for them: the sweep of a search.

A search (Optuna, KerasTuner) decides what to try next when it has seen what came out, often in
several threads at once. They share one pool: each asks for its trial and waits, and all of them
get their memory from the same admission.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from legroom.core.errors import LegroomError
from legroom.sweeps.local import LOOK_EVERY, Engine
from legroom.sweeps.opening import Settings, opened
from legroom.sweeps.trials.trial import Trial

__all__ = ["TrialPool"]


class TrialPool:
    """Runs trials in processes of their own, for any number of threads.

    Args:
        train: The training, a function of a config.
        settings: As for a sweep.
    """

    def __init__(self, train: Callable[[Any], Any], settings: Settings) -> None:
        self._train = train
        self._settings = settings
        self._condition = threading.Condition()
        self._asked: list[tuple[int, Any]] = []
        self._ended: dict[int, Trial] = {}
        self._next = 0
        self._thread: threading.Thread | None = None
        self._closing = False
        self._error: BaseException | None = None

    def run(self, config: Any) -> Trial:
        """Run a trial, and wait for its end.

        Raises:
            LegroomError: If the pool can't be opened, or was closed.
        """
        with self._condition:
            if self._thread is None and not self._closing:
                # A thread of its own: a process that is tied to a thread ends with it, and those
                # of a search come and go.
                self._thread = threading.Thread(target=self._serve, name="legroom-trials")
                self._thread.daemon = True
                self._thread.start()
            number, self._next = self._next, self._next + 1
            self._asked.append((number, config))
            while number not in self._ended and self._error is None and not self._closing:
                self._condition.wait(0.5)  # so that Ctrl-C comes through
            if number in self._ended:
                return self._ended.pop(number)
        if isinstance(self._error, LegroomError):
            raise self._error
        raise LegroomError(
            f"The trial was not run: {self._error or 'its pool was closed'}."
        ) from self._error

    def close(self) -> None:
        """End what still runs."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            with opened(self._train, self._settings) as sweep:
                engine = Engine(sweep)
                try:
                    while not self._closing:
                        self._step(engine)
                finally:
                    engine.stop()
                sweep.ended = True
        except BaseException as error:
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def _step(self, engine: Engine) -> None:
        with self._condition:
            asked, self._asked = self._asked, []
        for number, config in asked:
            engine.add(number, config)
        for trial in [*engine.start(), *engine.look()]:
            with self._condition:
                self._ended[trial.number] = trial
                self._condition.notify_all()
        threading.Event().wait(LOOK_EVERY)
