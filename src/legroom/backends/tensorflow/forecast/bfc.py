"""TensorFlow's allocator (best fit with coalescing), as a model that hands out no memory. Pure.

What a training takes is not the sum of its tensors: sizes are rounded up, a free chunk that is a
little too large is given whole, and what was there before decides which chunks are free. So a
stream of allocations is played through the allocator's own rules.
"""

from __future__ import annotations

import bisect
import math

__all__ = ["BestFit"]

_UNIT = 256
_FIRST_REGION = 2 * 2**20
# A chunk is split if at least this much would be left over, or half of it.
_MOST_SLACK = 128 * 2**20


class _Chunk:
    __slots__ = ("after", "before", "free", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size
        self.free = True
        self.before: _Chunk | None = None
        self.after: _Chunk | None = None


class BestFit:
    """The allocator's books.

    Attributes:
        in_use: Bytes handed out, with the slack of their chunks.
        peak: The most that was in use.

    Args:
        limit: The size of the pool; None for one without end.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.in_use = 0
        self.peak = 0
        self._limit = limit
        self._taken = 0
        self._region = _FIRST_REGION
        self._bottom = 0
        self._free: list[tuple[int, int]] = []  # size and start, sorted
        self._at: dict[int, _Chunk] = {}

    def allocate(self, size: int) -> int | None:
        """Take memory.

        Returns:
            Its address; None where the pool is exhausted.
        """
        wanted = max(_UNIT, -(-size // _UNIT) * _UNIT)
        chunk = self._find(wanted)
        if chunk is None:
            if not self._extend(wanted):
                return None
            chunk = self._find(wanted)
            assert chunk is not None
        if chunk.size >= 2 * wanted or chunk.size - wanted >= _MOST_SLACK:
            self._split(chunk, wanted)
        chunk.free = False
        self.in_use += chunk.size
        self.peak = max(self.peak, self.in_use)
        return chunk.start

    def release(self, address: int) -> None:
        """Give memory back."""
        chunk = self._at[address]
        self.in_use -= chunk.size
        chunk.free = True
        if chunk.after is not None and chunk.after.free:
            self._forget(chunk.after)
            self._merge(chunk, chunk.after)
        if chunk.before is not None and chunk.before.free:
            self._forget(chunk.before)
            self._merge(chunk.before, chunk)
            chunk = chunk.before
        bisect.insort(self._free, (chunk.size, chunk.start))

    def size_at(self, address: int) -> int:
        """The bytes of the chunk that was handed out there."""
        return self._at[address].size

    def _find(self, wanted: int) -> _Chunk | None:
        place = bisect.bisect_left(self._free, (wanted, -math.inf))
        if place == len(self._free):
            return None
        return self._at[self._free.pop(place)[1]]

    def _extend(self, wanted: int) -> bool:
        left = None if self._limit is None else (self._limit - self._taken) // _UNIT * _UNIT
        if left is not None and wanted > left:
            return False
        grown = False
        while wanted > self._region:
            self._region *= 2
            grown = True
        size = self._region if left is None else min(self._region, left)
        if not grown:
            self._region *= 2
        self._taken += size
        # Each region lies below the one before, as the system maps them, and they do not touch.
        # Of two free chunks of one size the lower one is taken.
        self._bottom -= size + _UNIT
        chunk = _Chunk(self._bottom, size)
        self._at[chunk.start] = chunk
        bisect.insort(self._free, (chunk.size, chunk.start))
        return True

    def _split(self, chunk: _Chunk, size: int) -> None:
        rest = _Chunk(chunk.start + size, chunk.size - size)
        chunk.size = size
        rest.before, rest.after = chunk, chunk.after
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after = rest
        self._at[rest.start] = rest
        bisect.insort(self._free, (rest.size, rest.start))

    def _forget(self, chunk: _Chunk) -> None:
        del self._free[bisect.bisect_left(self._free, (chunk.size, chunk.start))]

    def _merge(self, first: _Chunk, second: _Chunk) -> None:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._at[second.start]
