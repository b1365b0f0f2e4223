"""Trials side by side on this machine: as many as the memory allows by what they need."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from legroom.core.errors import LegroomError
from legroom.core.events import Note, TrialAgain, TrialEnded, TrialStarted, emit
from legroom.core.units import format_bytes, format_seconds
from legroom.machine.memory import host_available
from legroom.report.screen.sweep_table import Row, SweepPicture
from legroom.sweeps.opening import OpenSweep
from legroom.sweeps.packing.admission import Admission, threads_for
from legroom.sweeps.packing.needs import Cap, Needs
from legroom.sweeps.trials.trial import Trial
from legroom.sweeps.trials.trial_run import TrialRun
from legroom.sweeps.trials.verdicts import Again

if TYPE_CHECKING:
    from legroom.sweeps.on_ray import RayRun

__all__ = ["LOOK_EVERY", "Engine", "run_trials"]

# Configs that are read ahead, to choose what fits best beside what runs.
_WINDOW = 64
LOOK_EVERY = 0.05
_SHOW_EVERY = 0.5
# A process that takes a snapshot at its end gets so long.
_STOP_SECONDS = 8.5
# A framework, a process's own libraries and a little data, before anything is known.
_OVERHEAD = 600 * 2**20
_OF_THE_HOST = 0.9


def run_trials(
    sweep: OpenSweep, configs: Iterable[Any], engine: Engine
) -> Generator[Trial, None, None]:
    """Run trials, and yield each when it has ended.

    Args:
        sweep: What they have in common, and where they are kept.
        configs: Their configs; read a few at a time.
        engine: What runs them.
    """
    source = enumerate(configs)
    total = len(configs) if isinstance(configs, Sized) else None
    shown = float("-inf")
    done = 0
    try:
        while True:
            ended = itertools.chain(engine.fill(source), engine.start(), engine.look())
            for trial in ended:
                done += 1
                yield trial
            if engine.idle:
                return
            now = time.monotonic()
            if now - shown >= _SHOW_EVERY:
                shown = now
                sweep.show(engine.picture(done, total))
            time.sleep(LOOK_EVERY)
    finally:
        engine.stop()


class Engine:
    """The trials that wait, and those that run.

    Args:
        sweep: What they have in common.
        make: Makes a run of a number and a config; in a process of this machine by default.
    """

    def __init__(
        self, sweep: OpenSweep, make: Callable[[int, Any], TrialRun | RayRun] | None = None
    ) -> None:
        self._make = make or self._run_here
        self._is_here = make is None
        self._job = sweep.job
        self._folder = sweep.folder
        self._on_gpu = sweep.on_gpu
        self._cores = sweep.cores
        self._needs = Needs(sweep.job.memory, min(sweep.workers, sweep.cores))
        self._admission = Admission(sweep.memory, sweep.workers)
        self._waiting: dict[int, TrialRun | RayRun] = {}
        self._running: dict[int, TrialRun | RayRun] = {}
        self._asked: dict[int, int] = {}  # what trials that are queued again need
        self._exhausted = False
        self._overhead = _OVERHEAD

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to do."""
        return self._exhausted and not self._waiting and not self._running

    def fill(self, source: Iterator[tuple[int, Any]]) -> Iterator[Trial]:
        """Read configs ahead; those whose trials have ended before are over."""
        while not self._exhausted and len(self._waiting) < _WINDOW:
            try:
                number, config = next(source)
            except StopIteration:
                self._exhausted = True
                return
            trial = self._folder.finished(number, config)
            if trial is not None:
                if trial.peak_bytes is not None:
                    self._needs.ran(config, trial.peak_bytes)
                yield trial
                continue
            self.add(number, config)

    def add(self, number: int, config: Any) -> None:
        """Queue a trial."""
        self._queue(self._make(number, config))

    def _run_here(self, number: int, config: Any) -> TrialRun:
        return TrialRun(self._job, number, config, self._folder)

    def start(self) -> Iterator[Trial]:
        """Start what fits; yields those that can't be started."""
        while (grant := self._admission.next(self._room())) is not None:
            run = self._waiting.pop(grant.number)
            threads = threads_for(
                self._cores,
                min(self._admission.workers, self._cores),
                self._job.memory,
                grant.nbytes,
            )
            try:
                run.start(grant.nbytes, threads, tried=self._is_tried(run))
            except (OSError, LegroomError) as error:
                self._admission.end(grant.number)
                trial = run.could_not_start(error)
                self._tell(trial)
                yield trial
                continue
            self._running[grant.number] = run
            emit(TrialStarted(number=run.number, cap_bytes=grant.nbytes, threads=threads))

    def look(self) -> Iterator[Trial]:
        """Look after what runs; yields those that have ended."""
        for number, run in list(self._running.items()):
            ending = run.look()
            if ending is None:
                continue
            del self._running[number]
            self._admission.end(number)
            self._learn(run, ending)
            if isinstance(ending, Again):
                self._say_again(run, ending)
                self._queue(run)
            else:
                self._asked.pop(number, None)
                self._keep(ending)
                self._tell(ending)
                yield ending

    def stop(self) -> None:
        """End all that runs: each keeps a snapshot, if it can in time."""
        for run in self._running.values():
            run.stop()
        until = time.monotonic() + _STOP_SECONDS
        try:
            for run in self._running.values():
                run.give_up(max(0.0, until - time.monotonic()))
        finally:
            for run in self._running.values():
                run.give_up(0)
            self._running.clear()

    def picture(self, done: int, total: int | None) -> SweepPicture:
        """The sweep as it is now."""
        rows = [
            Row(run.number, _short(run.config), run.place, run.cap, run.seconds)
            for run in self._running.values()
        ]
        waiting = None if total is None else max(0, total - done - len(rows))
        return SweepPicture(
            tuple(rows), done, waiting, self._admission.memory, self._admission.free_bytes
        )

    def _queue(self, run: TrialRun | RayRun) -> None:
        cap = self._needs.cap(run.config)
        asked = self._asked.get(run.number)
        if asked is not None:
            cap = Cap(max(asked, cap.nbytes), max(asked, cap.least))
        self._waiting[run.number] = run
        self._admission.add(run.number, cap)

    def _learn(self, run: TrialRun | RayRun, ending: Trial | Again) -> None:
        """Correct what trials like this are given, by what it has really used."""
        if isinstance(ending, Again):
            if ending.need_bytes is not None:
                self._asked[run.number] = ending.need_bytes
                self._needs.asks(run.config, ending.need_bytes)
            if ending.of_host:
                self._overhead = int(self._overhead * 1.5)
        elif ending.status == "finished" and run.carried.peak is not None:
            self._needs.ran(run.config, run.carried.peak)
        else:
            return
        if run.carried.host_peak:
            beside = 0 if self._on_gpu else (run.carried.peak or 0)
            self._overhead = max(self._overhead, run.carried.host_peak - beside)
        for waiting in self._waiting.values():
            self._queue(waiting)

    def _is_tried(self, run: TrialRun | RayRun) -> bool:
        return self._needs.is_measured(run.config) and run.number not in self._asked

    def _room(self) -> int | None:
        """What a trial may take of the machine's memory, beside those that run; None: anything."""
        if not self._running or not self._is_here:
            return None
        held = expected = 0
        for run in self._running.values():
            held += run.resident_bytes
            expected += self._overhead + (0 if self._on_gpu else run.cap)
        room = int(_OF_THE_HOST * (host_available() + held)) - expected - self._overhead
        if self._on_gpu:
            return None if room > 0 else 0
        return max(0, room)

    def _keep(self, trial: Trial) -> None:
        try:
            self._folder.end(trial)
        except OSError as error:
            emit(
                Note(
                    f"The result of trial {trial.number} could not be written to "
                    f"{trial.folder}: {error.strerror or error}. It is in what the sweep returns; "
                    "a sweep that is interrupted runs this trial again."
                )
            )

    @staticmethod
    def _say_again(run: TrialRun | RayRun, again: Again) -> None:
        more = ""
        if again.need_bytes is not None:
            more = f" with {format_bytes(again.need_bytes)}"
        text = f"trial {run.number}: {again.why}; it is queued again{more}, and resumes"
        emit(TrialAgain(text, number=run.number, cap_bytes=again.need_bytes))

    @staticmethod
    def _tell(trial: Trial) -> None:
        how = {"finished": "finished in", "failed": "failed after", "cannot_fit":
               "does not fit, after", "timed_out": "was ended after"}[trial.status]  # fmt: skip
        text = f"trial {trial.number} {how} {format_seconds(trial.seconds)}"
        if trial.status == "finished":
            if trial.peak_bytes is not None:
                text += f", {format_bytes(trial.peak_bytes)} at most"
        else:
            text += f": {trial.error.splitlines()[0]} Its log: {trial.log}"
        emit(
            TrialEnded(
                text,
                number=trial.number,
                status=trial.status,
                seconds=trial.seconds,
                peak_bytes=trial.peak_bytes,
            )
        )


def _short(config: Any) -> str:
    if isinstance(config, dict):
        return ", ".join(f"{key}={value}" for key, value in config.items())
    return str(config)
