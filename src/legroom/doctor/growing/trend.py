"""Whether a series of memory readings grows, or only warmed up, or is noise. Pure.

The test, in words. The first readings are left out: a first iteration builds, traces and fills
caches. Memory *grows* if, on what remains,

1. a Mann-Kendall test finds a rising trend with an error probability of at most 1 %: it compares
   every pair of readings, so neither one jump nor an outlier can make it positive by itself;
2. the more recent half rises as well, by Theil-Sen at least a third as steeply as the whole: what
   slows down is a warm-up or a buffer that fills;
3. it keeps what it took: from reading to reading (from block to block where there are many) the
   falls are at most a fifth of the rises, which a random walk seldom does;
4. the rise is worth a word: at least a megabyte, and four times the noise around the line.

Otherwise it *warmed up* if the readings left out lie below the rest, and is *steady* if not.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Sequence

__all__ = ["Growth", "Reading", "count_rate", "mann_kendall", "test_growth", "theil_sen"]

Reading = tuple[int, int]  # iteration, bytes

_ERROR = 0.01
_RECENT_ERROR = 0.2  # a half has few readings; the whole has already been tested
_RECENT_SHARE = 1 / 3
_WORTH = 1_000_000
_NOISE = 4
_FALLS = 1 / 5
_BLOCKS = 12
_FEWEST = 5
_MOST = 160  # readings that are compared pair by pair
_EXACT = 10


@dataclasses.dataclass(frozen=True)
class Growth:
    """What the test says.

    Attributes:
        verdict: ``"grows"``, ``"warmed up"``, ``"steady"`` or ``"too few"`` readings.
        slope: Bytes an iteration, where it grows.
        since: The first iteration that counted.
        readings: How many readings counted.
        probability: That readings without a trend would look like this by chance.
    """

    verdict: str
    slope: float = 0.0
    since: int = 0
    readings: int = 0
    probability: float = 1.0

    @property
    def grows(self) -> bool:
        """Whether memory grows."""
        return self.verdict == "grows"


def test_growth(readings: Sequence[Reading]) -> Growth:
    """Test a series of readings.

    Args:
        readings: Pairs of iteration and bytes, in order.
    """
    warm = max(2, math.ceil(len(readings) / 4))
    rest = _thinned(readings[warm:])
    if len(rest) < _FEWEST:
        return Growth("too few", readings=len(rest))
    values = [value for _, value in rest]
    probability = mann_kendall(values)
    slope = theil_sen(rest)
    recent = rest[len(rest) // 2 - (len(rest) < 8) :]
    recent_slope = theil_sen(recent)
    # As said, and not a reading more: a plateau in the middle is no end of the growth.
    rising = (
        probability <= _ERROR
        and mann_kendall([value for _, value in recent]) <= _RECENT_ERROR
        and recent_slope >= _RECENT_SHARE * slope
        and _keeps(values)
    )
    rise = slope * (rest[-1][0] - rest[0][0])
    if rising and rise >= max(_WORTH, _NOISE * _noise(rest, slope)):
        return Growth("grows", slope, rest[0][0], len(rest), probability)
    base = statistics.median(values)
    before = min(value for _, value in readings[:warm])
    verdict = "warmed up" if base - before >= _WORTH else "steady"
    return Growth(verdict, 0.0, rest[0][0], len(rest), probability)


test_growth.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for one of its own


def count_rate(readings: Sequence[Reading]) -> float:
    """How many of something an iteration adds, for good; 0 where it does not go on doing so.

    The same test as for bytes, without a noise to compare with: a count has none.

    Args:
        readings: Pairs of iteration and count, in order.
    """
    rest = _thinned(readings[max(2, math.ceil(len(readings) / 4)) :])
    if len(rest) < _FEWEST or mann_kendall([count for _, count in rest]) > _ERROR:
        return 0.0
    whole, recent = _rate(rest), _rate(rest[len(rest) // 2 :])
    return whole if recent >= _RECENT_SHARE * whole else 0.0


def _rate(readings: Sequence[Reading]) -> float:
    (first, few), (last, many) = readings[0], readings[-1]
    return (many - few) / max(last - first, 1)


def mann_kendall(values: Sequence[float]) -> float:
    """The probability that values without a trend would rise as clearly as these by chance.

    Exact for few values; for more by the normal approximation, with a correction for ties.
    """
    n = len(values)
    score = sum(
        (values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n)
    )
    ties = [values.count(value) for value in set(values)]
    if n <= _EXACT and max(ties) == 1:
        return _exact_tail(n, score)
    variance = n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)
    if variance <= 0:
        return 1.0
    z = (score - (score > 0) + (score < 0)) / math.sqrt(variance / 18)
    return 0.5 * math.erfc(z / math.sqrt(2))


def theil_sen(readings: Sequence[Reading]) -> float:
    """The median slope of all pairs of readings, in bytes an iteration."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for k, earlier in enumerate(readings)
        for later in readings[k + 1 :]
        if later[0] != earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _keeps(values: Sequence[int]) -> bool:
    """Whether falls are few beside the rises."""
    size = math.ceil(len(values) / _BLOCKS)
    blocks = [statistics.median(values[k : k + size]) for k in range(0, len(values), size)]
    moves = [later - earlier for earlier, later in itertools.pairwise(blocks)]
    rises, falls = sum(m for m in moves if m > 0), -sum(m for m in moves if m < 0)
    return falls <= _FALLS * rises


def _noise(readings: Sequence[Reading], slope: float) -> float:
    """The median distance of the readings from their line."""
    offsets = [value - slope * iteration for iteration, value in readings]
    middle = statistics.median(offsets)
    return statistics.median(abs(offset - middle) for offset in offsets)


def _thinned(readings: Sequence[Reading]) -> list[Reading]:
    """At most so many readings as can be compared pair by pair, evenly taken, the last with it."""
    stride = max(1, math.ceil(len(readings) / _MOST))
    return list(readings[::-1][::stride])[::-1]


def _exact_tail(n: int, score: int) -> float:
    """The share of the orders of n values whose score is at least this."""
    inversions = (n * (n - 1) // 2 - score) // 2
    return sum(_orders(n)[: inversions + 1]) / math.factorial(n)


@functools.cache
def _orders(n: int) -> tuple[int, ...]:
    """How many orders of n values have 0, 1, 2, … inversions."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for k, count in enumerate(counts):
            for extra in range(size):
                longer[k + extra] += count
        counts = longer
    return tuple(counts)
