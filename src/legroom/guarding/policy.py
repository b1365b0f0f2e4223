"""Which slice size to try next. Pure: it knows numbers only, no framework and no device.

Sizes are chosen from three sources, the surest first: what was seen to fit or to fail at this
much free memory; what was measured, carried over to other sizes; what was predicted before
anything ran. An out-of-memory error costs seconds, so the search moves by measurement wherever
there is one, and by halving and bisecting only where there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

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
# A larger size is worth a new trace only if it is larger by such a part; where slices are of a few
# samples, by a larger one: they are far from what fits when they are one sample off.
_FEW = 32
_WORTH_OF_FEW, _WORTH_OF_MANY = 8, 16
_HANDFUL = 4
# A plan was made with care: past it, only what is much larger is worth the risk of failing.
_WORTH_PAST_PLAN = 0.8
# A size is good enough when no larger one could be more than this much larger.
_GOOD_ENOUGH = 0.8


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
        proven = self._proven(samples, free, barred)
        limit = samples if barred is None else min(samples, barred - 1)
        expected = self._expected(limit, free)
        if not self._knows_growth() and proven:
            # One measurement does not tell what a sample more costs: look, but not far.
            near = expected is None or expected < _next(proven)
            expected = None if near and proven < limit else min(expected or 0, proven * _APART)
        if barred is not None and proven >= (barred - 1) * _GOOD_ENOUGH:
            chosen = proven  # whatever fits beyond it is not worth another failure
        elif expected is not None:
            # Measured where it can be; but never again at a size that failed, and not below one
            # that was seen to fit.
            if barred is not None and expected >= barred * _GOOD_ENOUGH:
                # What failed was expected to fit too: just below it this is not to be relied on.
                expected = max(1, (proven + barred) // 2)
            chosen = max(expected, proven)
            if chosen < _next(proven) and chosen < samples:
                chosen = proven
            if self.start is not None and proven and chosen < samples:
                # Larger slices, but as many of them, are no faster: the last one is a small one.
                as_many = -(-samples // chosen) == -(-samples // proven)
                if as_many or proven >= chosen * _WORTH_PAST_PLAN:
                    chosen = proven
        elif barred is None:
            chosen = min(limit, proven + max(1, proven // 3)) if proven else limit
        elif not proven:
            chosen = max(1, barred // 2)
        else:
            chosen = (proven + barred) // 2
        if chosen != proven:
            # Where fewer slices are to be tried than were seen to fit, even ones are as good as
            # larger ones, and surer; what is measured then tells how much larger they may be.
            fewer = proven == 0 or -(-samples // chosen) < -(-samples // proven)
            trusting = expected is not None and not self._failed
            chosen = _even(chosen, samples, proven, 0.5 if fewer and trusting else 0.9)
        return max(1, min(chosen, limit))

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
        if free is not None and expected is not None and expected <= free:
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
            # Not even one sample, says the prediction, so what it sees does not grow with the
            # slice and tells nothing about smaller ones. In proportion, then; and by halves once
            # that has failed.
            if self._failed:
                return None
            whole = self._expected_need(limit)
            low = int(limit * free / whole) if whole else limit
        return max(1, low)

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
        if near < _HANDFUL and size <= _next(near):
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


def _next(size: int) -> int:
    """The smallest size above one that is worth a new trace."""
    return size + max(1, size // (_WORTH_OF_FEW if size < _FEW else _WORTH_OF_MANY))


def _even(size: int, samples: int, proven: int, least: float) -> int:
    """A size that divides the batch more evenly, if it is not smaller than a part of this one."""
    count = -(-samples // size)
    even = -(-samples // count)
    return even if even >= least * size and even > proven else size
