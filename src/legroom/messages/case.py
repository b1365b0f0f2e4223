"""The case: one log judged as a whole, before it is told in words.

Several things may be in one log: a note that is no failure, a failure, its echo on another device,
a retry, the death of the process. The case says which of them began it and which ended it.
"""

from __future__ import annotations

import dataclasses

from legroom.messages.reading.collector import Collector
from legroom.messages.reading.facts import Facts
from legroom.messages.reading.incident import Incident

__all__ = ["Case", "judge"]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A judged log.

    Attributes:
        cause: What it began with; None where nothing was found.
        facts: What is known of it.
        is_oom: Whether memory ran out.
        fatal: Whether the work was lost.
        fragmented: Whether room enough was there, in pieces too small.
        growth: Whether memory was not given back between failures.
        blow: What ended it, where that is something else.
        failures: How many times memory ran out.
        together: How many allocations failed side by side in the step that it began with.
        devices: All devices it ran out on.
        asides: Other things worth a sentence.
        contradicted: Whether the message reports room that it did not get.
    """

    cause: Incident | None = None
    facts: Facts = dataclasses.field(default_factory=Facts)
    is_oom: bool | None = False
    fatal: bool = False
    fragmented: bool | None = None
    growth: bool | None = None
    blow: Incident | None = None
    failures: int = 0
    together: int = 0
    devices: tuple[str, ...] = ()
    asides: tuple[Incident, ...] = ()
    contradicted: bool = False


def judge(seen: Collector) -> Case:
    """Say what began it, what ended it, and what is known."""
    incidents = _without_excused(seen.incidents)
    cause = _cause(incidents, seen.deaths, list(seen.notes.values()))
    if cause is None:
        return Case()
    facts = cause.told_facts()
    notes = [note for note in seen.notes.values() if note is not cause]
    if cause.pattern.kind == "death":
        _add_what_host_notes_know(facts, notes)
    facts.framework = facts.framework or seen.framework_near(cause) or cause.pattern.fallback
    contradicted = _drop_contradictions(facts)
    ooms = [one for one in incidents if one.is_oom and one.fatal]
    # What failed beside it in the same step is no later blow.
    blows = [one for one in incidents if one.fatal and one.place != cause.place] + seen.deaths
    later = [one for one in blows if one.start > cause.start]
    devices = dict.fromkeys(one.facts.device for one in ooms if one.facts.device)
    others = [one for one in incidents if one is not cause and not one.is_oom]
    return Case(
        cause=cause,
        facts=facts,
        is_oom=cause.is_oom,
        fatal=cause.fatal,
        fragmented=_fragmented(cause, facts) if cause.is_oom and cause.fatal else None,
        growth=_growth(ooms),
        blow=max(later, key=lambda one: one.start, default=None) if cause.fatal else None,
        failures=seen.failures if ooms else 0,
        together=sum(1 for one in ooms if one.place == cause.place),
        devices=tuple(devices),
        asides=tuple(others + notes)[:3],
        contradicted=contradicted,
    )


def _cause(
    incidents: list[Incident], deaths: list[Incident], notes: list[Incident]
) -> Incident | None:
    """The first of the worst kind there is."""
    kinds = (
        [one for one in incidents if one.is_oom and one.fatal and not one.pattern.weak],
        # A bare "ResourceExhaustedError" may belong to a full disk that is told elsewhere.
        [one for one in incidents if one.is_oom is False and one.fatal],
        [one for one in incidents if one.is_oom and one.fatal],
        [one for one in deaths if one.is_oom],
        [one for one in (*deaths, *incidents) if one.is_oom is None],
        [one for one in (*incidents, *notes) if one.is_oom],
        sorted(notes, key=lambda one: one.finding == "no-gpu-found"),
    )
    for group in kinds:
        if group:
            return min(group, key=lambda one: one.start) if group is not kinds[-1] else group[0]
    return None


def _without_excused(incidents: list[Incident]) -> list[Incident]:
    """Leave out a cuDNN that did not start, where its version is what is wrong."""
    if not any(one.finding == "cudnn-version-mismatch" for one in incidents):
        return incidents
    return [one for one in incidents if one.finding != "cudnn-failed-to-initialize"]


def _add_what_host_notes_know(facts: Facts, notes: list[Incident]) -> None:
    """A process that was killed says nothing; a warning about host memory before it does."""
    for note in notes:
        if note.facts.where == "host" and facts.where in (None, "host"):
            facts.framework = facts.framework or note.facts.framework
            facts.device = facts.device or note.facts.device


def _drop_contradictions(facts: Facts) -> bool:
    """Forget what can't be true together; returns whether there was such a thing.

    PyTorch at times reports more free memory than it failed to get. Somebody else held it at that
    moment, so how much was in use is not known from this message.
    """
    asked, free, limit = facts.requested_bytes, facts.free_bytes, facts.limit_bytes
    used = facts.in_use_bytes
    if facts.framework != "torch" or asked is None or free is None or used is None:
        return False
    if free <= asked or (limit is not None and used + asked > limit):
        return False
    facts.in_use_bytes = None
    return True


def _fragmented(cause: Incident, facts: Facts) -> bool | None:
    """Whether the room was there and only cut up; None where the text does not tell."""
    asked = facts.requested_bytes
    if asked is None:
        return None
    if facts.unallocated_bytes is not None:
        return facts.unallocated_bytes >= asked
    wasted = cause.program.fragmentation_bytes
    if wasted is not None:
        over = asked - facts.limit_bytes if facts.limit_bytes else asked
        return wasted >= over > 0
    if facts.in_use_bytes is None or facts.limit_bytes is None:
        return None
    # A limit may promise more than the device has left. Where the driver refused to let the pool
    # grow, only what the pool already had was there.
    refused = bool(cause.sizes) and facts.pool_bytes is not None
    whole = facts.pool_bytes if refused and facts.pool_bytes is not None else facts.limit_bytes
    if whole - facts.in_use_bytes < asked:
        return False
    largest = facts.largest_free_bytes
    if largest is None and cause.dump is not None and cause.dump.occupancy:
        bar = cause.dump.occupancy
        longest = max(len(run) for run in bar.replace("x", "*").split("*"))
        largest = longest * (facts.pool_bytes or whole) // len(bar)
    return True if largest is not None and largest < asked else None


def _growth(ooms: list[Incident]) -> bool | None:
    """Whether more was in use at the last failure than at the first, though no more was asked.

    Failures of one step are taken as one, and of one device only: what ops hold side by side, or
    other devices hold, says nothing about what is given back.
    """
    steps: dict[int, Facts] = {}
    for one in ooms:
        if (one.facts.device, one.worker) == (ooms[0].facts.device, ooms[0].worker):
            facts = one.told_facts()
            if facts.in_use_bytes is not None:
                steps.setdefault(one.episode, facts)
    if len(steps) < 2:
        return None
    first, *_, last = steps.values()
    asked_first, asked_last = first.requested_bytes, last.requested_bytes
    if asked_first is not None and asked_last is not None and asked_last > 1.02 * asked_first:
        return False
    return (last.in_use_bytes or 0) > 1.02 * (first.in_use_bytes or 0)
