"""How PyTorch's allocators hand out memory. Pure.

A CPU's takes what it is asked for. A GPU's keeps what is freed, in segments of its own: blocks are
rounded up, taken where they fit best, split where enough is left, and joined again
(c10/cuda/CUDACachingAllocator.cpp, with its default settings).
"""

from __future__ import annotations

import bisect
from typing import Protocol

__all__ = ["Allocator", "CachingAllocator", "NoRoom", "PlainAllocator"]

_MIN_BLOCK = 512
_SMALL = 2**20  # what is not larger comes from the small segments
_SMALL_SEGMENT = 2 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT = 10 * 2**20  # from here on, a segment of its own
_ROUND_SEGMENT = 2 * 2**20


class NoRoom(Exception):
    """The limit is reached."""


class Allocator(Protocol):
    """Hands out memory, and counts it."""

    @property
    def in_use(self) -> int:
        """The bytes that are handed out, as the allocator counts them."""
        ...

    @property
    def taken(self) -> int:
        """The most bytes that it has held so far, handed out or not."""
        ...

    def allocate(self, key: int, nbytes: int) -> None:
        """Hand out memory, under a key; raises `NoRoom`."""
        ...

    def free(self, key: int) -> None:
        """Take it back."""
        ...


class PlainAllocator:
    """A CPU's.

    Args:
        limit: The bytes there are.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._sizes: dict[int, int] = {}
        self.in_use = 0
        self.taken = 0

    def allocate(self, key: int, nbytes: int) -> None:
        """Hand out memory; raises `NoRoom`."""
        if self._limit is not None and self.in_use + nbytes > self._limit:
            raise NoRoom
        self._sizes[key] = nbytes
        self.in_use += nbytes
        self.taken = max(self.taken, self.in_use)

    def free(self, key: int) -> None:
        """Take it back."""
        self.in_use -= self._sizes.pop(key)


class _Block:
    """A stretch of a segment, free or handed out."""

    __slots__ = ("after", "before", "large", "place", "size", "used")

    def __init__(self, place: int, size: int, large: bool) -> None:
        self.place, self.size, self.large = place, size, large
        self.used = False
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """A GPU's.

    Args:
        limit: The bytes there are.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._handed_out: dict[int, _Block] = {}
        # Free blocks by size and place: those of the small segments, and those of the large ones.
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._at: dict[int, _Block] = {}
        self._next = 0
        self.in_use = 0
        self.taken = 0

    def allocate(self, key: int, nbytes: int) -> None:
        """Hand out memory; raises `NoRoom`."""
        if nbytes <= 0:
            return
        size = max(_MIN_BLOCK, -(-nbytes // _MIN_BLOCK) * _MIN_BLOCK)
        free = self._free[size > _SMALL]
        found = bisect.bisect_left(free, (size, -1))
        block = self._at.pop(free.pop(found)[1]) if found < len(free) else self._segment(size)
        self._split(block, size)
        block.used = True
        self._handed_out[key] = block
        self.in_use += block.size

    def free(self, key: int) -> None:
        """Take it back, and join it with what is free beside it."""
        block = self._handed_out.pop(key, None)
        if block is None:
            return  # of no bytes
        self.in_use -= block.size
        block.used = False
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.used:
                self._take_out(neighbour)
                first, second = sorted((block, neighbour), key=lambda one: one.place)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                block = first
        self._put_in(block)

    def _segment(self, size: int) -> _Block:
        """A new segment, as one block."""
        if size <= _SMALL:
            wanted = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            wanted = _LARGE_SEGMENT
        else:
            wanted = -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT
        if self._limit is not None and self.taken + wanted > self._limit:
            self._give_back()
            if self.taken + wanted > self._limit:
                raise NoRoom
        block = _Block(self._next, wanted, size > _SMALL)
        self._next += wanted
        self.taken += wanted
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Leave what is not needed of a block to others, where that is enough to be of use."""
        left = block.size - size
        if left <= _SMALL if block.large else left < _MIN_BLOCK:
            return
        rest = _Block(block.place + size, left, block.large)
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        block.size = size
        self._put_in(rest)

    def _give_back(self) -> None:
        """Give segments back that are free as a whole."""
        for block in list(self._at.values()):
            if block.before is None and block.after is None:
                self._take_out(block)
                self.taken -= block.size

    def _put_in(self, block: _Block) -> None:
        bisect.insort(self._free[block.large], (block.size, block.place))
        self._at[block.place] = block

    def _take_out(self, block: _Block) -> None:
        free = self._free[block.large]
        del free[bisect.bisect_left(free, (block.size, block.place))]
        del self._at[block.place]
