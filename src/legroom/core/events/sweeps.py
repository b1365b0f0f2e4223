"""What happens in a sweep: to its trials, as its parent sees them."""

from __future__ import annotations

import dataclasses

from legroom.core.events.event import Event, WithPeak

__all__ = ["OfTrial", "SweepEnded", "SweepStarted", "TrialAgain", "TrialEnded", "TrialStarted"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepStarted(Event, name="sweep_started"):
    """A sweep begins, or resumes.

    Attributes:
        memory_bytes: What its trials share.
        workers: How many run at once, at most.
    """

    memory_bytes: int | None = None
    workers: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTrial(Event):
    """What tells of a trial, by its number."""

    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialStarted(OfTrial, name="trial_started"):
    """A trial's process was started: with which cap, and how many threads."""

    cap_bytes: int | None = None
    threads: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialAgain(OfTrial, name="trial_again"):
    """A trial's process has ended, and it is queued again."""

    cap_bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialEnded(OfTrial, WithPeak, name="trial_ended"):
    """A trial has ended: how, and after how many seconds."""

    status: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepEnded(Event, name="sweep_ended"):
    """All trials have ended: how many there were, and how many of them well."""

    trials: int = 0
    finished: int = 0
    seconds: float = 0.0
