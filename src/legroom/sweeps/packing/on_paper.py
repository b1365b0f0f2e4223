"""How trials of known needs and times are packed: played through, nothing is run. Pure."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from legroom.sweeps.packing.admission import Admission
from legroom.sweeps.packing.needs import Cap

__all__ = ["Expected", "Packing", "Placed", "pack"]


@dataclasses.dataclass(frozen=True)
class Expected:
    """A trial before it runs.

    Attributes:
        number: The trial.
        cap: What it will get.
        seconds: How long it should run.
    """

    number: int
    cap: Cap
    seconds: float


@dataclasses.dataclass(frozen=True)
class Placed:
    """When a trial runs, and with what cap."""

    number: int
    nbytes: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Packing:
    """A sweep played through.

    Attributes:
        trials: Its trials, in the order in which they start.
        seconds: How long all of it takes.
        most_bytes: The most that is given out at once.
        most_at_once: The most trials that run at once.
    """

    trials: tuple[Placed, ...]
    seconds: float
    most_bytes: int
    most_at_once: int


def pack(trials: Sequence[Expected], memory: int, workers: int) -> Packing:
    """Play a sweep through.

    Args:
        trials: Its trials.
        memory: What they share.
        workers: How many run at once, at most.
    """
    admission = Admission(memory, workers)
    seconds = {trial.number: trial.seconds for trial in trials}
    for trial in trials:
        admission.add(trial.number, trial.cap)
    placed: list[Placed] = []
    running: list[tuple[float, int]] = []
    now, most_bytes, most_at_once = 0.0, 0, 0
    while admission.waiting or running:
        while (grant := admission.next()) is not None:
            end = now + seconds[grant.number]
            placed.append(Placed(grant.number, grant.nbytes, now, end))
            heapq.heappush(running, (end, grant.number))
        most_bytes = max(most_bytes, memory - admission.free_bytes)
        most_at_once = max(most_at_once, len(running))
        now, number = heapq.heappop(running)
        admission.end(number)
    return Packing(tuple(placed), now, most_bytes, most_at_once)
