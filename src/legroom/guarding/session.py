"""What happens around a guarded call of Keras: events are gathered, and a report is made."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from legroom.core.aside import in_a_line, say_left_out
from legroom.core.events import (
    Event,
    Note,
    TrainingFinished,
    TrainingStarted,
    emit,
    has_listener,
    listening,
)
from legroom.guarding import wording
from legroom.guarding.retrying.guarded_step import GuardedStep
from legroom.guarding.showing.progress import status_in_progress_bar
from legroom.guarding.showing.sampling import sampler
from legroom.report.run import RunReport
from legroom.snapshots.run import current_run

__all__ = ["Session", "SpeakingStep", "report_all", "report_at_exit", "terminal"]


class Session:
    """The guarded calls of one model.

    A call inside another one (the validation inside `fit`) belongs to the outer one.
    """

    _all: ClassVar[weakref.WeakKeyDictionary[Any, Session]] = weakref.WeakKeyDictionary()
    _depth = threading.local()

    def __init__(self) -> None:
        # Weakly: a model that is compiled anew gets new steps, and the old ones hold memory.
        self._steps: weakref.WeakSet[GuardedStep] = weakref.WeakSet()
        self._said_unguarded = False

    @classmethod
    def of(cls, model: Any) -> Session:
        """The session of a model."""
        return cls._all.setdefault(model, cls())

    def watch(self, step: GuardedStep) -> None:
        """Have a step report when the call it runs in ends."""
        self._steps.add(step)

    def run(self, method: str, model: Any, call: Callable[[], Any]) -> Any:
        """Run a call of Keras; a `History` it returns gets the report."""
        if getattr(self._depth, "value", 0):
            return call()
        if method.endswith("_on_batch"):
            # Called once for each batch of a loop by hand: no start and no end to speak of.
            with terminal():
                return call()
        events: list[Event] = []
        self._depth.value = 1
        try:
            with (
                terminal(),
                listening(events.append, own=True),
                _tensorboard(method, call),
                status_in_progress_bar(self._status),
            ):
                emit(TrainingStarted(method=method))
                try:
                    result = self._begun(method, model, call)()
                finally:
                    self._report()
                    sampler.tell()
                    emit(TrainingFinished(method=method))
        finally:
            self._depth.value = 0
        if method == "fit":
            result.legroom = RunReport.from_events(events)
            if result.legroom.sliced:
                _show(result.legroom)
        return result

    def _begun(self, method: str, model: Any, call: Any) -> Callable[[], Any]:
        """The call, with the steps of earlier ones told that another one begins."""
        kept = self._kept(method, model, call)
        run = current_run()
        training = getattr(kept, "training", None if run is None else run.training)
        for step in list(self._steps):
            step.begin_call(training)
        return kept

    def _kept(self, method: str, model: Any, call: Any) -> Callable[[], Any]:
        """The call itself; a `fit` is kept in snapshots, where those are wanted."""
        run = current_run() if method == "fit" else None
        if run is None or run.training is not None:
            return call
        from legroom.backends import patches

        lacking = patches.missing("resume")
        if lacking is None:
            try:
                from legroom.guarding.resuming.resume import KeptFit

                return KeptFit(run, model, call, self._report)
            except Exception as error:
                lacking = in_a_line(error)
        say_left_out(wording.not_kept(), lacking)
        return call

    def _status(self) -> str | None:
        return next((text for step in list(self._steps) if (text := step.status)), None)

    def _report(self) -> None:
        for step in list(self._steps):
            step.report()

    def run_unguarded(self, name: str, reason: str, call: Callable[[], Any]) -> Any:
        """Run a call that can't be guarded as Keras would, and say so once."""
        if not self._said_unguarded:
            self._said_unguarded = True
            with terminal():
                emit(Note(f"{name} is trained as Keras would, without legroom: {reason}"))
        return call()


# Weakly: what a script has dropped must not be held until its end.
_unreported: weakref.WeakSet[GuardedStep] = weakref.WeakSet()
_speaking: weakref.WeakSet[SpeakingStep] = weakref.WeakSet()


def report_at_exit(step: GuardedStep) -> GuardedStep:
    """Have a step report when the process ends: steps that are called by hand have no other end."""
    _unreported.add(step)
    _report_all_at_exit()
    return step


@functools.cache
def _report_all_at_exit() -> None:
    """Once there is something to report: what was registered before is called after it.

    The journal is closed at the exit too, and must be there when this is told.
    """
    atexit.register(report_all)


def report_all() -> None:
    """The end, of the process or of legroom in it: what was not reported yet is."""
    for step in list(_unreported):
        step.report()
    for speaking in list(_speaking):
        speaking.close()


class SpeakingStep:
    """A hand-written step that says what happens, and shows the table when the process ends."""

    def __init__(self, step: GuardedStep) -> None:
        self._step = step
        self._events: list[Event] = []
        _speaking.add(self)
        _report_all_at_exit()

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch."""
        with terminal(), listening(self._events.append, own=True):
            return self._step(data)

    def close(self) -> None:
        """Report, and show the table if anything was sliced."""
        with listening(self._events.append):
            self._step.report()
        report = RunReport.from_events(self._events)
        self._events.clear()
        if report.sliced:
            _show(report)


def terminal() -> contextlib.AbstractContextManager[None]:
    """Say what happens in the terminal, unless someone up there does already."""
    from legroom.report.screen.lines import LiveLines

    return contextlib.nullcontext() if has_listener(LiveLines) else listening(LiveLines())


def _tensorboard(method: str, call: Any) -> contextlib.AbstractContextManager[None]:
    if method != "fit":
        return contextlib.nullcontext()
    from legroom.guarding.showing.tensorboard import beside_keras

    return beside_keras(call)


def _show(report: RunReport) -> None:
    from legroom.report.screen.lines import LiveLines
    from legroom.report.screen.table import print_table

    if not has_listener(LiveLines):  # under `legroom run` the table comes at the script's end
        print_table(report)
