"""A script played through the allocator's model: the peak of each step; and what is live then."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from legroom.backends.tensorflow.forecast.bfc import BestFit
from legroom.backends.tensorflow.forecast.script import Allocation, Entry, Move, Script

__all__ = ["Live", "Replay", "look_closer", "replay", "replays", "smallest_pool"]

# The same training does not always peak at the same height: which free chunk is taken depends on
# all that was there before. So a script is also played on pools that differ in a little that was
# taken before it began, as it does from program to program: that tells how far it may wander.
_BEFORE = (0, 3 * 2**18, 5 * 2**20)
_STEPS = 8
_UNIT = 256
# Steps before this one are not the steady state.
_SETTLED = 2
# A pool that is just as large as the peak may be too small, because what is free lies in pieces;
# or a smaller one will do, which leaves less lying idle. Looked for in this range of the peak.
_LEAST, _MOST = 0.6, 1.7
_HALVINGS = 5


@dataclasses.dataclass(frozen=True)
class Live:
    """Something that is in memory at the peak.

    Attributes:
        op: The op that made it.
        region: "output", "temp" or empty.
        phase: "build", "input", "state" or "step".
        nbytes: What it takes.
    """

    op: str
    region: str
    phase: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Replay:
    """What came of it.

    Attributes:
        peaks: The peak of each step.
    """

    peaks: tuple[int, ...]

    @property
    def first(self) -> int:
        """The first step's peak."""
        return self.peaks[0]

    @property
    def steady(self) -> int:
        """The highest peak of the steps after the first two."""
        return max(self.peaks[_SETTLED:])


def replays(script: Script, samples: int, steps: int = _STEPS) -> list[Replay]:
    """Play a script on a pool of its own, and on a few that are not quite like it."""
    return [replay(script, samples, steps, before) for before in _BEFORE]


def replay(script: Script, samples: int, steps: int = _STEPS, before: int = 0) -> Replay:
    """Play a script once.

    Args:
        script: The script.
        samples: The batch size.
        steps: How many steps.
        before: Bytes that were taken and given back before it began.
    """
    played = _play(script, samples, steps, BestFit(), before)
    assert played is not None  # the model's pool has no limit
    return played


def smallest_pool(script: Script, samples: int, steps: int = _SETTLED + 1) -> int:
    """The bytes of the smallest pool that a script goes through in, up to a few percent."""
    peak = max(replay(script, samples, steps).peaks)
    low, high = peak * _LEAST, peak * _MOST
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if _play(script, samples, steps, BestFit(int(middle))) is None:
            low = middle
        else:
            high = middle
    return int(high)


def _play(
    script: Script, samples: int, steps: int, pool: BestFit, before: int = 0
) -> Replay | None:
    """Play a script in a pool; None where it is exhausted."""
    if before:
        block = pool.allocate(before)
        pool.allocate(before // 3)
        pool.release(block or 0)
    offset = pool.in_use
    at: dict[int, int] = {}
    peaks: list[int] = []
    for name, moves, _ in script.phases(samples, steps):
        pool.peak = pool.in_use
        for number, size in moves:
            if size < 0:
                address = at.pop(number, None)
                if address is not None:
                    pool.release(address)
            elif size:  # nothing is nowhere
                taken = pool.allocate(size)
                if taken is None:
                    return None
                at[number] = taken
        if name.startswith("step"):
            peaks.append(pool.peak - offset)
    return Replay(tuple(peaks))


def look_closer(
    script: Script, samples: int, kind_of: Callable[[Live], str] | None = None
) -> tuple[list[Live], list[tuple[str, int]], list[dict[str, int]]]:
    """What is live at the peak of a steady step, and the bytes that are live at each of its ops.

    Without the allocator: what each thing asked for, not what its chunk takes.

    Args:
        script: The script.
        samples: The batch size.
        kind_of: What a thing in memory is for.

    Returns:
        What is live at the peak; op and bytes along the step; and the same bytes by kind.
    """
    steps = max(len(script.steps), _SETTLED + 1)
    held: dict[int, tuple[str, Entry, int]] = {}
    total = best = 0
    timeline: list[tuple[str, int]] = []
    kinds: list[dict[str, int]] = []
    parts: Counter[str] = Counter()
    kind_in: dict[int, str] = {}
    live: list[Live] = []
    phases = list(script.phases(samples, steps))
    for turn, (name, moves, entries) in enumerate(phases):
        last = turn == len(phases) - 1
        peak_at = _highest(moves, held, total) if last else -1
        phase = "step" if name.startswith("step") else name
        for place, ((number, size), entry) in enumerate(zip(moves, entries, strict=True)):
            if size < 0:
                freed = held.pop(number, ("", 0, 0))[2]
                total -= freed
                parts[kind_in.pop(number, "")] -= freed
                continue
            rounded = -(-size // _UNIT) * _UNIT
            held[number] = (phase, entry, rounded)
            total += rounded
            if kind_of is not None and isinstance(entry, Allocation):
                kind = kind_in[number] = kind_of(Live(entry.op, entry.region, phase, rounded))
                parts[kind] += rounded
            if last and isinstance(entry, Allocation):
                timeline.append((entry.op, total))
                kinds.append(dict(parts))
            if last and place == peak_at:
                best = total
                live = [
                    Live(item.op, item.region, from_phase, nbytes)
                    for from_phase, item, nbytes in held.values()
                    if isinstance(item, Allocation)
                ]
    assert best or not live
    return live, timeline, kinds


def _highest(moves: Sequence[Move], held: Mapping[int, tuple[str, Entry, int]], total: int) -> int:
    """The move after which most is live."""
    sizes = {number: item[2] for number, item in held.items()}
    best, where = total, -1
    for place, (number, size) in enumerate(moves):
        if size < 0:
            total -= sizes.pop(number, 0)
        else:
            sizes[number] = -(-size // _UNIT) * _UNIT
            total += sizes[number]
            if total > best:
                best, where = total, place
    return where
