"""What a trial will need, from what trials like it have used. Pure.

Trials are alike if their configs differ in floats only: a learning rate or a rate of dropout
changes no shape. What such trials took is what the next one will take. For a config that is like
none before it there is a guess: an equal share of the memory, or what the trial took whose config
has most in common with it. A guess that is too small costs a start and no more, because the trial
says what it needs before its first step (see `legroom.sweeps.trials.verdicts`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["SMALLEST_CAP", "Cap", "Needs", "traits"]

# A framework and a small model are started in this.
SMALLEST_CAP = 128 * 2**20
# Steps do not always peak at the same height, and an allocator can't use the gaps between what it
# has handed out: a net that peaks at 252 MiB was seen to run out in 315.
_MARGIN = 1.5
# Shapes that are remembered; a sweep over a hundred thousand must not grow with them.
_MOST = 256


@dataclasses.dataclass(frozen=True)
class Cap:
    """How much memory to give to a trial.

    Attributes:
        nbytes: The cap.
        least: What it may start with, too, where less is free; the cap itself where it is known.
    """

    nbytes: int
    least: int


@dataclasses.dataclass
class _Known:
    need: int
    measured: bool


class Needs:
    """Learns what trials take.

    Args:
        memory: The bytes that all trials share.
        workers: How many run at once, at most.
    """

    def __init__(self, memory: int, workers: int) -> None:
        self.memory = memory
        self._share = max(memory // max(1, workers), min(SMALLEST_CAP, memory))
        self._known: dict[frozenset[tuple[str, str]], _Known] = {}

    def cap(self, config: Any) -> Cap:
        """How much memory a trial should get."""
        known = self._known.get(traits(config))
        if known is not None:
            size = self._within(known.need)
            return Cap(size, size)
        guess = self._within(self._nearest(config))
        size = max(self._share, guess)
        return Cap(size, min(size, self._within(max(guess, self._share // 2))))

    def is_measured(self, config: Any) -> bool:
        """Whether a trial like this has run to its end."""
        known = self._known.get(traits(config))
        return known is not None and known.measured

    def ran(self, config: Any, peak_bytes: int) -> None:
        """A trial has run to its end, with so much in use at most."""
        self._learn(config, _Known(int(peak_bytes * _MARGIN), True))

    def asks(self, config: Any, need_bytes: int) -> None:
        """A trial does not fit into its cap, and should fit into this."""
        self._learn(config, _Known(need_bytes, False))

    def _learn(self, config: Any, new: _Known) -> None:
        shape = traits(config)
        known = self._known.pop(shape, None)
        if known is not None and known.measured >= new.measured:
            new = _Known(max(known.need, new.need), new.measured)
        elif known is not None and known.measured:
            new = _Known(max(known.need, new.need), True)
        self._known[shape] = new
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def _nearest(self, config: Any) -> int:
        """What the trial took that has most in common with a config; 0 where there is none."""
        shape = traits(config)
        return max(
            ((len(shape & other), known.need) for other, known in self._known.items()),
            default=(0, 0),
        )[1]

    def _within(self, size: int) -> int:
        return min(self.memory, max(size, SMALLEST_CAP))


def traits(config: Any) -> frozenset[tuple[str, str]]:
    """What of a config its need may depend on: all but the floats in it."""
    found: set[tuple[str, str]] = set()
    _collect(config, "", found)
    return frozenset(found)


def _collect(value: Any, path: str, found: set[tuple[str, str]]) -> None:
    if isinstance(value, float):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _collect(item, f"{path}.{key}", found)
    elif isinstance(value, (list, tuple)):
        found.add((path, f"{len(value)} items"))
        for number, item in enumerate(value):
            _collect(item, f"{path}.{number}", found)
    else:
        found.add((path, repr(value)))
