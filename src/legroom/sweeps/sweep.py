"""``legroom.sweep``: many trainings that share the memory."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.events import Note, SweepEnded, SweepStarted, emit
from legroom.core.units import format_seconds
from legroom.supervisor.signals import die_by
from legroom.sweeps.local import Engine, run_trials
from legroom.sweeps.opening import OpenSweep, Settings, opened
from legroom.sweeps.trials.trial import Trial

__all__ = ["run_sweep", "sweep"]

_ENGINES = ("local", "ray")


def sweep(
    train: Callable[[Any], Any],
    configs: Iterable[Any],
    engine: str = "local",
    *,
    memory: str | int | None = None,
    workers: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    time_limit: float | None = None,
    exact: bool = False,
    seed: int = 0,
) -> list[Trial]:
    """Run many trainings, each in a process of its own, as many at once as the memory allows.

    Each trial is guarded, and kept in snapshots: one that is killed resumes, one that needs more
    memory than it got is queued again with more, and one that fails does not stop the others. A
    sweep that was interrupted resumes when the same call is made again.

    Args:
        train: The training, a function of a config; not changed for this. It may be one of a
            notebook, a lambda or a closure. What it returns is kept as JSON: numbers, lists, dicts,
            a `History`.
        configs: A config for each trial; a list, or a generator, which is read as trials start.
        engine: Where the trials run: ``"local"``, in processes of this machine; ``"ray"``, on a
            cluster: the one that Ray is connected to, that of RAY_ADDRESS, or a local one.
        memory: The device memory that all trials share ("8GiB", "80%"); what is free by default.
            Each gets a hard cap, and the caps never add up to more.
        workers: How many run at once, at most; as many as there are cores by default. Each
            computes with its part of the cores, unless OMP_NUM_THREADS or the like says otherwise.
        folder: Where logs, journals and results are kept; `.legroom/sweep-NAME` by default. On a
            cluster it must be one that all machines share, or a URL that fsspec knows.
        time_limit: Seconds after which a trial is ended.
        exact: Never slice what slices would change, as in `legroom.guard`.
        seed: What the seeds of the trials are made of. Each trial has its own, the same every time,
            for all random numbers that `train` does not seed itself.

    Returns:
        A `Trial` for each config, in their order, with `.status`, `.result` and `.error`.

    Raises:
        BadBudgetError: If the memory can't be read, or is too little to train in.
        SnapshotError: If another sweep works in the folder.
        KeyboardInterrupt: After Ctrl-C, when the trials that ran are stopped and kept.
    """
    _check(train, configs, engine, workers, time_limit)
    settings = Settings(memory, workers, folder, time_limit, exact, seed)
    return run_sweep(train, configs, settings, engine)


def run_sweep(
    train: Callable[[Any], Any],
    configs: Iterable[Any],
    settings: Settings,
    engine: str = "local",
) -> list[Trial]:
    """Run a sweep whose arguments were checked.

    Args:
        train: The training.
        configs: A config for each trial.
        settings: All the rest.
        engine: Where they run.
    """
    began, trials = time.monotonic(), dict[int, Trial]()
    stopped: BaseException | None = None
    with _engine(train, settings, engine) as (sweep, runner):
        how = "resumes" if sweep.folder.resumes else "begins"
        text = f"the sweep {how}; logs and results are in {sweep.folder.where}"
        emit(SweepStarted(text, memory_bytes=sweep.memory, workers=sweep.workers))
        try:
            running = run_trials(sweep, configs, runner)
            with _ending_in_order(), contextlib.closing(running):
                for trial in running:
                    trials[trial.number] = trial
        except (KeyboardInterrupt, _Terminated) as error:
            emit(
                Note(
                    f"the sweep is interrupted after {len(trials)} trials; nothing runs any more. "
                    "Run the same sweep again to resume it"
                )
            )
            stopped = error
        else:
            sweep.ended = True
            _say_ended(trials, time.monotonic() - began)
    if isinstance(stopped, _Terminated):
        die_by(signal.SIGTERM)
    if stopped is not None:
        raise stopped
    return [trials[number] for number in sorted(trials)]


@contextlib.contextmanager
def _engine(
    train: Callable[[Any], Any], settings: Settings, name: str
) -> Iterator[tuple[OpenSweep, Engine]]:
    if name == "ray":
        from legroom.sweeps.on_ray import opened_on_ray

        with opened_on_ray(train, settings) as (sweep, engine):
            yield sweep, engine
    else:
        with opened(train, settings) as sweep:
            yield sweep, Engine(sweep)


class _Terminated(BaseException):
    """SIGTERM came: a machine that is taken away, a scheduler whose time is up."""


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM stop the trials in order, as Ctrl-C does, where nobody else handles it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check(
    train: Any, configs: Any, engine: Any, workers: int | None, time_limit: float | None
) -> None:
    if not callable(train):
        raise TypeError(
            "legroom.sweep runs a function: legroom.sweep(train, configs). "
            f"Expected something to call. Received: {type(train).__name__}"
        )
    if isinstance(configs, (str, bytes, dict)) or not isinstance(configs, Iterable):
        raise TypeError(
            "legroom.sweep runs `train` once for each config. Expected a list of configs, or a "
            f"generator. Received: {type(configs).__name__}"
        )
    if engine not in _ENGINES:
        raise LegroomError(
            f"There is no engine {engine!r}. Expected one of: {', '.join(map(repr, _ENGINES))}."
        )
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise LegroomError(
            f"workers must be a whole number, 1 or more. Received: workers={workers!r}"
        )
    if time_limit is not None and time_limit <= 0:
        raise LegroomError(
            f"time_limit must be seconds, more than 0. Received: time_limit={time_limit!r}"
        )


def _say_ended(trials: dict[int, Trial], seconds: float) -> None:
    finished = sum(trial.status == "finished" for trial in trials.values())
    text = f"{finished} of {len(trials)} trials finished in {format_seconds(seconds)}"
    emit(SweepEnded(text, trials=len(trials), finished=finished, seconds=seconds))
