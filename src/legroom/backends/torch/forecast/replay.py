"""A script played through an allocator: peaks, the pool that is enough, what is in memory. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from legroom.backends.torch.forecast.allocator import Allocator, NoRoom
from legroom.backends.torch.forecast.script import Piece, Script

__all__ = ["Moment", "Peaks", "look_closer", "play", "smallest_pool"]

# A pool is found to this share of it.
_NEAR = 1 / 256


@dataclasses.dataclass(frozen=True)
class Peaks:
    """What the steps of a training take.

    Attributes:
        first: The most bytes in use in the first step.
        steady: In a later one.
        taken: The most that the allocator held.
    """

    first: int
    steady: int
    taken: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """One moment of a step.

    Attributes:
        op: What was just allocated for.
        in_use: The bytes in use.
        kinds: The same by what they are for; what the allocator rounds up is not in it.
    """

    op: str
    in_use: int
    kinds: dict[str, int]


def play(script: Script, samples: int, make: Callable[[int | None], Allocator]) -> Peaks:
    """Play a training's first step, and a later one.

    Args:
        script: The step.
        samples: The batch size.
        make: Makes an allocator with a limit, or without one.
    """
    sizes = script.sizes(samples)
    allocator = make(None)
    first = _run(script.before, sizes, allocator)
    steady = _run(script.step, sizes, allocator)
    if script.rehearsed:
        return Peaks(first, steady, allocator.taken)
    alone, begin = make(None), script.as_first()
    first = _run((*begin.before, *begin.step), sizes, alone)
    return Peaks(first, steady, max(allocator.taken, alone.taken))


def smallest_pool(script: Script, samples: int, make: Callable[[int | None], Allocator]) -> int:
    """The smallest pool that the steps go through in."""
    peaks = play(script, samples, make)
    sizes = script.sizes(samples)
    low, high = max(peaks.first, peaks.steady), peaks.taken
    while high - low > _NEAR * low:
        middle = (low + high) // 2
        if _fits(script, sizes, make(middle)):
            high = middle
        else:
            low = middle
    return high


def look_closer(
    script: Script, samples: int, allocator: Allocator
) -> tuple[list[Piece], list[Moment]]:
    """What is in memory at the peak of a later step, and all moments of that."""
    sizes = script.sizes(samples)
    _run(script.before, sizes, allocator)
    live: set[int] = set()
    for event in script.before:
        (live.add if event >= 0 else live.discard)(max(event, ~event))
    kinds: collections.Counter[str] = collections.Counter()
    for place in live:
        kinds[script.pieces[place].kind] += sizes[place]
    line: list[Moment] = []
    most, at_peak = 0, live
    for event in script.step:
        place = max(event, ~event)
        _run((event,), sizes, allocator)
        kinds[script.pieces[place].kind] += sizes[place] if event >= 0 else -sizes[place]
        (live.add if event >= 0 else live.discard)(place)
        line.append(Moment(script.pieces[place].op, allocator.in_use, dict(kinds)))
        if allocator.in_use > most:
            most, at_peak = allocator.in_use, set(live)
    found = [dataclasses.replace(script.pieces[i], nbytes=sizes[i]) for i in at_peak]
    return found, line


def _run(events: Sequence[int], sizes: Sequence[int], allocator: Allocator) -> int:
    """Play events; returns the most bytes in use."""
    most = allocator.in_use
    for event in events:
        if event >= 0:
            allocator.allocate(event, sizes[event])
            most = max(most, allocator.in_use)
        else:
            allocator.free(~event)
    return most


def _fits(script: Script, sizes: Sequence[int], allocator: Allocator) -> bool:
    try:
        _run((*script.before, *script.step), sizes, allocator)
    except NoRoom:
        return False
    return True
