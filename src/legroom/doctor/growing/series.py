"""Readings of one loop's memory, and what they say."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from legroom.doctor.growing.amounts import Count
from legroom.doctor.growing.trend import Growth, count_rate, test_growth, theil_sen

__all__ = ["LoopReading", "LoopSeries"]

_MOST = 400  # readings kept; then every other one goes
_SUSPICIOUS = 4  # readings in a row, of which
_RISING = 2  # are higher than the one before
_SUSPICIOUS_BYTES = 1_000_000
_WORTH_EACH = 100_000  # bytes an iteration, or
_WORTH_TOTAL = 8_000_000  # bytes in all
_FEWEST = 7  # readings that can be tested
_FEWEST_LEAPS = 3  # readings, each of which is higher by
_LEAP = 32_000_000  # bytes


@dataclasses.dataclass(frozen=True)
class LoopReading:
    """Memory and counts after an iteration.

    Attributes:
        iteration: Which one.
        resident: The process's main memory.
        heap: What is allocated of it; None where that is not known.
        counts: What the framework counts, with ``device_bytes`` among it; None without one.
    """

    iteration: int
    resident: int
    heap: int | None
    counts: Any


class LoopSeries:
    """The readings of one run of one loop, or of several short ones.

    Args:
        place: The loop's line.
        unit: What an iteration of it is.
        filling: Whether buffers and caches of the input fill meanwhile.
    """

    def __init__(self, place: str, unit: str = "iteration", *, filling: bool = False) -> None:
        self.place = place
        self.unit = unit
        self.filling = filling
        self.readings: list[LoopReading] = []
        self.census: Count | None = None
        self.examined = 0
        self.free = True
        self.last_read = 0.0
        self.began = time.perf_counter()
        self.before = 0

    def go_on(self) -> None:
        """Take the iterations of another run of the loop for a continuation."""
        self.before = self.readings[-1].iteration if self.readings else 0

    def add(self, reading: LoopReading) -> None:
        """Note a reading."""
        self.readings.append(reading)
        if len(self.readings) > _MOST:
            self.readings = self.readings[: _MOST // 4] + self.readings[_MOST // 4 :: 2]

    @property
    def short(self) -> bool:
        """Whether it has too few readings for the test of growth."""
        return len(self.readings) < _FEWEST

    def leaps(self) -> float:
        """Bytes that each iteration of a short loop adds, at least; 0 where they are not many.

        There is no test for so few readings: every one has to be far above the one before, and
        about as far.
        """
        if len(self.readings) < _FEWEST_LEAPS:
            return 0.0
        series = [[reading.heap or reading.resident for reading in self.readings]]
        if all(reading.counts is not None for reading in self.readings):
            series.append([reading.counts.device_bytes for reading in self.readings])
        for values in series:
            steps = [later - earlier for earlier, later in itertools.pairwise(values)]
            if min(steps) >= max(_LEAP, max(steps) / 3):
                return float(min(steps))
        return 0.0

    def restart(self) -> None:
        """Forget the readings: they were of garbage that has been collected."""
        self.readings = self.readings[-1:]
        self.census = None

    @property
    def counted(self) -> list[LoopReading]:
        """The readings after the warm-up."""
        return self.readings[max(2, math.ceil(len(self.readings) / 4)) :]

    def memory(self) -> Growth:
        """Whether memory grows, by the surest measure that says so.

        The device's own count is exact. So is the heap's, but the device's pool is taken from it in
        few large pieces. Pages are what the machine runs out of, and the roughest of the three.
        """
        tests = []
        if all(reading.counts is not None for reading in self.counted):
            tests.append(self._test(lambda reading: reading.counts.device_bytes))
        if all(reading.heap is not None for reading in self.counted):
            tests.append(self._test(lambda reading: reading.heap or 0))
        tests.append(self._test(lambda reading: reading.resident))
        return next((test for test in tests if test.grows), tests[-1])

    def worth_it(self, growth: Growth) -> bool:
        """Whether growth that nothing explains yet is worth looking into."""
        total = growth.slope * (self.readings[-1].iteration - growth.since)
        return growth.grows and (growth.slope >= _WORTH_EACH or total >= _WORTH_TOTAL)

    def device_slope(self) -> float:
        """Bytes that an iteration adds on the device; 0 where it adds none, or does not tell."""
        if any(reading.counts is None for reading in self.counted):
            return 0.0
        return self._test(lambda reading: reading.counts.device_bytes).slope

    def surely_grows(self) -> bool:
        """Whether pages and allocations agree that memory grows.

        Pages alone also grow where allocations only lie badly; nobody is to blame for that.
        """
        others = [self._test(lambda reading: reading.heap or 0)]
        if all(reading.counts is not None for reading in self.counted):
            others.append(self._test(lambda reading: reading.counts.device_bytes))
        if all(reading.heap is None for reading in self.counted):
            others = []  # there is nothing to agree with
        pages = self._test(lambda reading: reading.resident)
        return pages.grows and (not others or any(test.grows for test in others))

    def rate(self, name: str) -> float:
        """How many of something each iteration adds for good."""
        if any(reading.counts is None for reading in self.readings):
            return 0.0
        return count_rate(
            [(reading.iteration, getattr(reading.counts, name)) for reading in self.readings]
        )

    def suspicious(self) -> bool:
        """Whether most of the last few readings rise: enough to begin to look closer."""
        last = self.readings[-_SUSPICIOUS:]
        if len(last) < _SUSPICIOUS or len(self.readings) < _SUSPICIOUS + 1:
            return False
        series = [[reading.heap or reading.resident for reading in last]]
        if all(reading.counts is not None for reading in last):
            series.append([reading.counts.device_bytes for reading in last])
        return any(
            sum(later > earlier for earlier, later in itertools.pairwise(values)) >= _RISING
            and values[-1] - values[0] >= _SUSPICIOUS_BYTES
            for values in series
        )

    def rough_slope(self) -> float:
        """Bytes an iteration, also where they are too few to be called growth by themselves."""
        pairs = [(r.iteration, r.heap if r.heap is not None else r.resident) for r in self.counted]
        return max(theil_sen(pairs), 0.0)

    def _test(self, value: Callable[[LoopReading], int]) -> Growth:
        return test_growth([(reading.iteration, value(reading)) for reading in self.readings])
