"""Which slice size to try next. Pure: it knows numbers only, no framework and no device.

Sizes are chosen from three sources, the surest first: what was seen to fit or to fail at this
much free memory; what was measured, carried over to other sizes; what was predicted before
anything ran. An out-of-memory error costs seconds, so the search moves by measurement wherever
there is one, and by halving and bisecting only where there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from legroom.guarding.retrying.next_size import Known, next_size, worth_a_trace

__all__ = ["SliceSearch"]

# Past a measured size, what is added for larger ones has this much doubt, and so much of what was
# measured may be chance: the same step does not always peak at the same height.
_GROWTH_MARGIN = 1.25
_CHANCE = 0.09
# With so much more memory than it had when it failed, a size may be tried again; with so little
# less than it had when it fitted, it still fits.
_MORE = 1.3
_SAME = 1.1
# Two sizes have to be so far apart to tell what a sample costs.
_APART = 2
# What was measured at a size says something of sizes up to so many times as large.
_FAR = 4
_HANDFUL = 4


@dataclasses.dataclass
class SliceSearch:
    """Looks for the largest slice that fits, and remembers what it has seen.

    Attributes:
        fixed: A slice size set by hand; nothing is searched then.
        predict: Bytes that a step needs with slices of a size, before anything was measured.
        doubt: How many times as much as predicted it might be.
        start: The size to begin with, before anything was seen, where a plan says so.
        alike: Whether what is needed grows from size to size as predicted.
        usable: The part of what is free that a size above those that were seen may need.
    """

    fixed: int | None = None
    predict: Callable[[int], int] | None = None
    doubt: float = 1.15
    start: int | None = None
    alike: bool = True
    usable: float = 1.0
    _needs: dict[int, int] = dataclasses.field(default_factory=dict)
    _again: dict[int, int] = dataclasses.field(default_factory=dict)
    _fitted: dict[int, int | None] = dataclasses.field(default_factory=dict)
    _failed: list[tuple[int, int | None]] = dataclasses.field(default_factory=list)

    def propose(self, samples: int, free: int | None) -> int:
        """The slice size to try for a batch.

        Args:
            samples: The size of the batch.
            free: The bytes that are free now; None where nobody knows.
        """
        if self.fixed is not None:
            return min(self.fixed, samples)
        if self.start is not None and not self._fitted and not self._failed:
            return min(self.start, samples)
        barred = self._barred(free)
        known = Known(
            samples,
            self._proven(samples, free, barred),
            barred,
            grows=self._knows_growth(),
            planned=self.start is not None,
            failed=bool(self._failed),
        )
        return next_size(dataclasses.replace(known, expected=self._expected(known.limit, free)))

    def succeeded(self, size: int, free: int | None, need: int | None, stayed: int = 0) -> None:
        """A step with slices of this size went through.

        Args:
            size: The slice size.
            free: The bytes that were free before it.
            need: The bytes it took at its peak, where they were measured.
            stayed: The bytes of them that are in use after it. The first step of a size makes what
                the next ones find: the optimizer's slots, a function's constants.
        """
        known = self._fitted.get(size)
        self._fitted[size] = free if known is None or free is None else min(known, free)
        if need is not None:
            self._needs[size] = max(need, self._needs.get(size, 0))
            self._again[size] = max(need - stayed, self._again.get(size, 0))

    def failed(self, size: int, free: int | None) -> None:
        """A step with slices of this size ran out of memory."""
        self._failed.append((size, free))
        self._fitted.pop(size, None)
        # What was measured at smaller sizes misled if it said that this one fits.
        expected = self._expected_need(size)
        if free is not None and expected and expected <= free:
            correction = free * 1.05 / expected
            self._needs = {at: int(need * correction) for at, need in self._needs.items()}
            self._again = {at: int(need * correction) for at, need in self._again.items()}

    def settled(self, samples: int, size: int) -> bool:
        """Whether whole batches of this size are known to fit."""
        return size >= samples and samples in self._fitted and not self._failed

    def exhausted(self, free: int | None) -> bool:
        """Whether slices of one sample failed, with at least this much memory free."""
        return self._barred(free) == 1

    def failures(self) -> int:
        """How many sizes failed so far."""
        return len({size for size, _ in self._failed})

    def _barred(self, free: int | None) -> int | None:
        """The smallest size that failed with at least this much memory free."""
        sizes = [
            size for size, had in self._failed if free is None or had is None or free <= had * _MORE
        ]
        return min(sizes, default=None)

    def _proven(self, samples: int, free: int | None, barred: int | None) -> int:
        """The largest size that was seen to fit in this much memory; 0 if none was."""
        return max(
            (
                size
                for size, had in self._fitted.items()
                if size <= samples
                and (barred is None or size < barred)
                and (
                    free is None
                    or (size in self._again and self._again[size] <= free)
                    or (had is not None and had <= free * _SAME)
                )
            ),
            default=0,
        )

    def _expected(self, limit: int, free: int | None) -> int | None:
        """The largest size up to a limit that should fit; None where nothing tells."""
        if free is None or self._expected_need(limit) is None:
            return None
        if self._needs:
            free = int(free * self.usable)
            if not self._failed and self._fits_by_far(limit, free):
                return limit
            limit = min(limit, (_FAR if self.alike else _APART) * max(self._needs))
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            need = self._expected_need(middle)
            assert need is not None
            if need <= free:
                low = middle
            else:
                high = middle - 1
        if low == 0 and not self._needs:
            return self._in_proportion(limit, free)
        return max(1, low)

    def _fits_by_far(self, size: int, free: int) -> bool:
        """Whether a size should fit by what was measured, however far away, and by the prediction.

        A first fit with two samples, to see whether a model runs, says little of batches of a
        hundred; but where there is room for many times as much, they are no reason to slice.
        """
        measured = self._expected_need(size)
        predicted = 0.0 if self.predict is None else self.predict(size) * self.doubt
        return measured is not None and max(measured, predicted) <= free

    def _in_proportion(self, limit: int, free: int) -> int | None:
        """What should fit where the prediction says that not even one sample does.

        What it sees does not grow with the slice then, and tells nothing about smaller ones. In
        proportion, then; and by halves once that has failed.
        """
        if self._failed:
            return None
        whole = self._expected_need(limit)
        return max(1, int(limit * free / whole)) if whole else max(1, limit)

    def _expected_need(self, size: int) -> int | None:
        """The bytes that a size should need at most, from measurements first."""
        if not self._needs:
            return None if self.predict is None else int(self.predict(size) * self.doubt)
        near = min(self._needs, key=lambda other: abs(other - size))
        each = self._per_sample()
        if size <= near:
            return max(0, int(self._needs[near] - each * (near - size)), self._carried(near, size))
        # A lucky step is not believed: no size needs less than a smaller one was seen to need.
        seen = max(need for other, need in self._needs.items() if other <= near)
        if near < _HANDFUL and size <= worth_a_trace(near):
            # One sample more is a large step down here: no more is added than it should take.
            return int(seen + each * (size - near))
        added = _CHANCE * near + _GROWTH_MARGIN * (size - near)
        return max(int(seen + each * added), self._carried(near, size))

    def _carried(self, near: int, size: int) -> int:
        """What was measured at one size, as the prediction carries it over to another."""
        if self.predict is None or not self.alike or self.predict(near) <= 0:
            return 0
        return int(self._needs[near] * self.predict(size) / self.predict(near))

    def _knows_growth(self) -> bool:
        if self.predict is not None:
            return True
        return bool(self._needs) and max(self._needs) >= min(self._needs) * _APART

    def _per_sample(self) -> float:
        """The bytes that one more sample in a slice costs."""
        low, high = min(self._needs), max(self._needs)
        predicted = 0.0
        if self.predict is not None and self.alike and self.predict(high) > 0:
            # Over a wide range: an allocator takes the next few samples into what it has, or not.
            growth = (self.predict(4 * high) - self.predict(high)) / (3 * high)
            predicted = growth * self._needs[high] / self.predict(high)
        if high >= low * _APART:
            measured = (self._needs[high] - self._needs[low]) / (high - low)
            # Chance can hide what a sample costs, but not most of it.
            return max(measured, predicted * 0.7)
        return predicted or self._needs[low] / low  # all of it, where nothing else is known
