"""Which slice size to try next, from what is known. Pure functions of a few numbers.

An out-of-memory error costs seconds and a new size costs a trace, so a size is tried only where
it promises enough: by what is expected to fit wherever something tells, and by halving and
bisecting only where nothing does.
"""

from __future__ import annotations

import dataclasses

__all__ = [
    "Known",
    "below_failure",
    "by_expectation",
    "by_trial",
    "evened",
    "is_good_enough",
    "next_size",
    "not_far",
    "with_fewer_slices",
    "worth_a_trace",
]

# One measurement says something of sizes up to so many times as large.
_NOT_FAR = 2
# A larger size is worth a new trace only if it is larger by such a part; where slices are of a few
# samples, by a larger one: they are far from what fits when they are one sample off.
_FEW = 32
_WORTH_OF_FEW, _WORTH_OF_MANY = 8, 16
# A plan was made with care: past it, only what is much larger is worth the risk of failing.
_WORTH_PAST_PLAN = 0.8
# A size is good enough when no larger one could be more than this much larger.
_GOOD_ENOUGH = 0.8


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of a batch, at the memory that is free now.

    Attributes:
        samples: The size of the batch.
        proven: The largest size that was seen to fit; 0 if none was.
        barred: The smallest size that failed; None if none did.
        expected: The largest size that should fit; None where nothing tells.
        grows: Whether it is known what a sample more costs.
        planned: Whether a plan said where to begin.
        failed: Whether any size failed so far, at whatever memory. Until then the whole batch is
            tried wherever nothing speaks against it, however small those before it were.
    """

    samples: int
    proven: int = 0
    barred: int | None = None
    expected: int | None = None
    grows: bool = True
    planned: bool = False
    failed: bool = False

    @property
    def limit(self) -> int:
        """The largest size that may be tried."""
        return self.samples if self.barred is None else min(self.samples, self.barred - 1)

    @property
    def least(self) -> int:
        """The smallest size above what fits that is worth trying."""
        worth = min(worth_a_trace(self.proven), self.samples)
        return max(with_fewer_slices(self.samples, self.proven), worth)


def next_size(known: Known) -> int:
    """The slice size to try for a batch."""
    proven, expected, limit = known.proven, known.expected, known.limit
    should_fit = expected is not None and expected >= limit and not known.failed
    if proven and not known.grows and not should_fit:
        expected = not_far(expected, proven, known.least)
    if known.least > limit or (known.barred is not None and is_good_enough(proven, known.barred)):
        size = proven
    elif expected is None:
        trial = by_trial(proven if known.failed else 0, known.barred, limit)
        size = max(known.least, trial)
    else:
        size = by_expectation(known, expected)
    if size != proven:
        size = evened(size, known.samples)
    return max(1, min(size, limit))


def with_fewer_slices(samples: int, proven: int) -> int:
    """The smallest size that makes fewer slices of a batch than one that fits.

    Larger slices, but as many of them, are no faster: the last one is a small one.
    """
    if not proven:
        return 1
    slices = _count(samples, proven)
    return -(-samples // (slices - 1)) if slices > 1 else samples + 1


def not_far(expected: int | None, proven: int, least: int) -> int | None:
    """What is expected from one measurement, which does not tell what a sample more costs.

    None where nothing that is worth trying is expected: then a trial tells.
    """
    if expected is None or expected < least:
        return None
    return min(expected, proven * _NOT_FAR)


def is_good_enough(proven: int, barred: int) -> bool:
    """Whether what may fit between a size that does and one that failed is not worth a failure."""
    return proven >= (barred - 1) * _GOOD_ENOUGH


def by_trial(proven: int, barred: int | None, limit: int) -> int:
    """Where nothing tells what fits: all of it, then halves; upward by thirds or by bisecting."""
    if barred is None:
        return min(limit, proven + max(1, proven // 3)) if proven else limit
    return (proven + barred) // 2 if proven else max(1, barred // 2)


def by_expectation(known: Known, expected: int) -> int:
    """What should fit, where it is worth more than what is seen to, and no less than that."""
    size = expected
    if known.barred is not None:
        size = below_failure(expected, known.least, known.barred)
    if size < known.least:
        return known.proven
    hardly_larger = known.proven >= size * _WORTH_PAST_PLAN
    return known.proven if known.planned and hardly_larger and size < known.samples else size


def below_failure(expected: int, least: int, barred: int) -> int:
    """What is expected; halfway to what failed where it is close to that.

    What failed was expected to fit too: just below it this is not to be relied on.
    """
    if expected >= barred * _GOOD_ENOUGH:
        return max(1, (least + barred) // 2)
    return expected


def worth_a_trace(proven: int) -> int:
    """The smallest size above one that fits that is worth a new trace."""
    return proven + max(1, proven // (_WORTH_OF_FEW if proven < _FEW else _WORTH_OF_MANY))


def evened(size: int, samples: int) -> int:
    """The smallest size that makes no more slices: all of them are as large."""
    return -(-samples // _count(samples, size))


def _count(samples: int, size: int) -> int:
    """How many slices a batch has."""
    return -(-samples // size)
