"""A sweep tried before it runs: the first steps of one trial of each shape, measured.

From what they take, and from how fast their steps are, follows how all trials are packed, and how
long the sweep takes. What is tried is ended after a few seconds; what a script does in its first
seconds, it does.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from legroom.core.events import EpochStarted, Event, MemorySampled
from legroom.core.records import Record
from legroom.report.run import RunReport
from legroom.sweeps.opening import OpenSweep
from legroom.sweeps.packing.admission import threads_for
from legroom.sweeps.packing.needs import Needs, traits
from legroom.sweeps.packing.on_paper import Expected, pack
from legroom.sweeps.trials.trial import Trial
from legroom.sweeps.trials.trial_run import TrialRun
from legroom.sweeps.trials.verdicts import Again

__all__ = ["Foreseen", "SweepForecast", "rehearse", "whole_seconds"]

# Shapes that are tried; others are guessed by the nearest of them.
_MOST = 8
# Trials that are packed on paper.
_MOST_PACKED = 10_000
_MEASURED_SECONDS = 3.0
_MOST_SECONDS = 120.0
_LOOK_EVERY = 0.1


@dataclasses.dataclass(frozen=True)
class Foreseen(Record):
    """A trial as it should run.

    Attributes:
        number: Its number.
        config: Its config.
        cap_bytes: What it gets.
        start: When it starts, in seconds from the beginning; None where times are not known.
        seconds: How long it runs.
        tried: Whether its own first steps were measured.
        trouble: What went wrong when it was tried.
    """

    number: int
    config: Any
    cap_bytes: int
    start: float | None
    seconds: float | None
    tried: bool = False
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class SweepForecast(Record):
    """A sweep as it should run.

    Attributes:
        trials: Its trials, in the order in which they start.
        memory_bytes: What they share.
        workers: How many run at once, at most.
        most_bytes: The most memory that is given at once.
        most_at_once: The most trials that run at once.
        seconds: How long it takes; None where that is not known.
        left_out: How many more trials there are.
    """

    trials: tuple[Foreseen, ...]
    memory_bytes: int
    workers: int
    most_bytes: int
    most_at_once: int
    seconds: float | None
    left_out: int = 0


def rehearse(
    sweep: OpenSweep,
    configs: Iterable[Any],
    total: int,
    told: Callable[[str], None] = lambda text: None,
) -> SweepForecast:
    """Try one trial of each shape, and pack all of them on paper.

    Args:
        sweep: What they have in common; in a folder of its own, which is of no use afterwards.
        configs: Their configs.
        total: How many there are.
        told: What is tried, for people.
    """
    job, needs = sweep.job, Needs(sweep.job.memory, sweep.workers)
    shown = list(itertools.islice(configs, _MOST_PACKED))
    shapes: dict[frozenset[tuple[str, str]], int] = {}
    for number, config in enumerate(shown):
        shapes.setdefault(traits(config), number)
    times: dict[frozenset[tuple[str, str]], float | None] = {}
    troubles: dict[int, str] = {}
    chosen = list(shapes.items())[:: max(1, -(-len(shapes) // _MOST))]
    for count, (shape, number) in enumerate(chosen, start=1):
        told(f"trying trial {number} ({count} of {len(chosen)})")
        run = TrialRun(job, number, shown[number], sweep.folder)
        times[shape], troubles[number] = _try(run, needs, sweep)
    known = [seconds for seconds in times.values() if seconds is not None]
    typical = sum(known) / len(known) if known else None
    expected = []
    for number, config in enumerate(shown):
        seconds = times.get(traits(config)) or typical or 1.0
        expected.append(Expected(number, needs.cap(config), seconds))
    packing = pack(expected, job.memory, sweep.workers)
    trials = tuple(
        Foreseen(
            placed.number,
            shown[placed.number],
            placed.nbytes,
            placed.start if known else None,
            placed.end - placed.start if known else None,
            placed.number in troubles,
            troubles.get(placed.number, ""),
        )
        for placed in packing.trials
    )
    left_out = total - len(shown)
    whole = packing.seconds * total / max(1, len(shown))
    return SweepForecast(
        trials,
        job.memory,
        sweep.workers,
        packing.most_bytes,
        packing.most_at_once,
        whole if known else None,
        left_out,
    )


def _try(run: TrialRun, needs: Needs, sweep: OpenSweep) -> tuple[float | None, str]:
    """Run the first steps of a trial: the seconds that all of it takes, and what went wrong."""
    until = time.monotonic() + _MOST_SECONDS
    try:
        while True:
            cap = needs.cap(run.config).nbytes
            run.start(cap, threads_for(sweep.cores, sweep.workers, needs.memory, cap))
            ending = None
            while ending is None and time.monotonic() < until and not _seen_enough(run):
                time.sleep(_LOOK_EVERY)
                ending = run.look()
            if isinstance(ending, Again) and ending.need_bytes is not None:
                needs.asks(run.config, ending.need_bytes)
                continue
            break
        if isinstance(ending, Trial) and ending.status != "finished":
            return None, ending.error
        peak = RunReport.from_events(run.events).peak_bytes
        if peak is not None:
            needs.ran(run.config, peak)
        if ending is not None:
            return run.seconds, ""
        return whole_seconds(run.events, run.began), ""
    finally:
        run.give_up(0)


def _seen_enough(run: TrialRun) -> bool:
    samples = [event for event in run.events if isinstance(event, MemorySampled) and event.steps]
    return bool(samples) and samples[-1].at - samples[0].at >= _MEASURED_SECONDS


def whole_seconds(events: Sequence[Event], began: float) -> float | None:
    """How long a training takes from its start to its end, by the pace of its steps so far.

    None where its steps were not counted, or nobody knows how many there will be.

    Args:
        events: What it has told.
        began: When its process was started.
    """
    epoch = next((e for e in events if isinstance(e, EpochStarted)), None)
    samples = [event for event in events if isinstance(event, MemorySampled) and event.steps]
    if epoch is None or not epoch.epochs or len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    # An epoch that has ended tells how many steps there are, where Keras did not know.
    later = next((e for e in events if isinstance(e, EpochStarted) and e.epoch > epoch.epoch), None)
    steps = epoch.steps or (None if later is None else later.steps_done - epoch.steps_done)
    if not steps or last.steps <= first.steps:
        return None
    pace = (last.at - first.at) / (last.steps - first.steps)
    return first.at - began + pace * max(0, epoch.epochs * steps - first.steps)
