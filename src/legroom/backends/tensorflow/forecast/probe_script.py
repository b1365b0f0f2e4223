"""What a probe recorded, carried over to any batch size. Pure.

A recording has the allocations and releases of a training's beginnings at two small batch sizes.
The same op allocates the same things at both sizes, in the same order; what grew between them
grows with the batch, axis by axis. So the stream of the larger size, with its axes stretched, is
what the allocator will see at any size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from legroom.backends.tensorflow.forecast.breakdown import plain_name
from legroom.backends.tensorflow.forecast.script import Allocation, Entry, Script
from legroom.core.graphs import Scratch

__all__ = ["read_recording"]

# The numbers of allocations that were not recorded begin here.
_UNSEEN = 10**8


def read_recording(
    record: Mapping[str, Any],
    sizes: tuple[int, int],
    later: Mapping[str, Scratch] | None = None,
) -> Script:
    """Make a script of a probe's record.

    Args:
        record: What the child wrote: the events of each phase, and the texts they refer to.
        sizes: The two batch sizes, the larger first.
        later: What ops take at batch sizes larger than these, by the ops' names.
    """
    return _Reader(record, sizes, later or {}).script()


class _Reader:
    def __init__(
        self, record: Mapping[str, Any], sizes: tuple[int, int], later: Mapping[str, Scratch]
    ) -> None:
        self._large, self._small = sizes
        self._later = {name: each for name, each in later.items() if each.since > self._large}
        self._unseen = itertools.count(_UNSEEN)
        self._texts: list[str] = record["texts"]
        self._events: Mapping[str, Any] = record["events"]
        self._lost = self._all = 0

    def script(self) -> Script:
        build, state = (
            [self._fixed(entry) for entry in self._events[name]] for name in ("build", "state")
        )
        given = self._matched(f"input {self._large}", f"input {self._small}")
        names = [name for name in self._events if name.endswith(f" of {self._large}")]
        # A first step makes what later ones have: state, and programs where XLA compiles an op.
        first, *later = names
        steps = [
            self._matched(first, f"step 1 of {self._small}"),
            *(self._matched(name, f"step 2 of {self._small}") for name in later),
        ]
        return Script(
            build, given, state, steps, self._large, self._lost / self._all if self._all else 0.0
        )

    def _matched(self, phase: str, counterpart: str) -> list[Entry]:
        small: dict[tuple[int, int, int], Sequence[int]] = {}
        ordinals: Counter[tuple[int, int]] = Counter()
        for entry in self._events[counterpart]:
            if len(entry) > 1:
                key = (entry[2], entry[3])
                small[key[0], key[1], ordinals[key]] = entry
                ordinals[key] += 1
        ordinals.clear()
        alike: dict[tuple[int, int], Allocation] = {}
        lost: list[tuple[int, Sequence[int]]] = []
        made: list[Entry] = []
        for entry in self._events[phase]:
            if len(entry) == 1:
                made.append(-entry[0])
                continue
            key = (entry[2], entry[3])
            other = small.get((key[0], key[1], ordinals[key]))
            ordinals[key] += 1
            self._all += entry[1]
            if other is None:
                lost.append((len(made), entry))
                made.append(self._fixed(entry))
            else:
                grown = self._grown(other, entry)
                alike.setdefault((entry[4], entry[1]), grown)
                made.append(grown)
            made += self._taken_later(entry)
        for place, entry in lost:
            # With several threads an op may write over its input at one size and not at the
            # other. A tensor of the same shape grows in the same way.
            like = alike.get((entry[4], entry[1]))
            if like is None:
                self._lost += entry[1]
            else:
                plain = self._fixed(entry)
                made[place] = dataclasses.replace(
                    like, number=plain.number, op=plain.op, region=plain.region
                )
        return made

    def _taken_later(self, entry: Sequence[int]) -> Sequence[Entry]:
        """What an op takes beside its output while it runs, at sizes that were not recorded."""
        op = self._texts[entry[2]]
        scratch = self._later.get(plain_name(op))
        if scratch is None or self._texts[entry[3]] != "output":
            return []
        axes, number = ((scratch.fixed, scratch.each),), next(self._unseen)
        return [Allocation(number, op, "temp", 0, axes, 1.0, since=scratch.since), number]

    def _fixed(self, entry: Sequence[int]) -> Any:
        if len(entry) == 1:
            return -entry[0]
        return Allocation(entry[0], self._texts[entry[2]], self._texts[entry[3]], entry[1])

    def _grown(self, small: Sequence[int], large: Sequence[int]) -> Allocation:
        plain: Allocation = self._fixed(large)
        if small[1] == large[1]:
            return plain
        a, b = _shape(self._texts[small[4]]), _shape(self._texts[large[4]])
        step = self._large - self._small
        if a is not None and b is not None and len(a) == len(b) and a != b and 0 not in b:
            axes = []
            count = 1
            for one, two in zip(a, b, strict=True):
                each = (two - one) / step
                axes.append((two - each * self._large, each))
                count *= two
            return dataclasses.replace(plain, axes=tuple(axes), itemsize=large[1] / count)
        return dataclasses.replace(plain, slope=(large[1] - small[1]) / step)


def _shape(text: str) -> list[int] | None:
    inner = text.strip("[]")
    if not inner:
        return None
    try:
        return [int(part) for part in inner.split(",")]
    except ValueError:
        return None
