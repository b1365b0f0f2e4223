"""The BFC allocator's dump: what TensorFlow and JAX print when their pool has no room.

A dump names bins (free lists by size), chunks (pieces of the pool, in use or free), a summary of
the chunks in use by size, and a few totals. Old versions print totals in bytes, TensorFlow 2.21
prints them for people. Any part may be missing: logs are cut, and levels are filtered.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.ops import plain_op
from legroom.messages.reading.sizes import device_of_allocator, parse_bytes

__all__ = ["Chunks", "Dump"]

_BINS = 21  # a whole dump has one line for each: 256 B, 512 B … 256 MiB
_KEPT_SIZES = 4096
_KEPT_OPS = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Chunks:
    """A number of chunks in use that have the same size."""

    count: int
    bytes: int

    @property
    def total(self) -> int:
        """The bytes of all of them."""
        return self.count * self.bytes


@dataclasses.dataclass(slots=True)
class Dump:
    """One dump, as far as it was seen.

    Attributes:
        facts: Limit, bytes in use and the rest that a diagnosis asks for.
        in_use: Chunks in use, by their size.
        holders: Bytes in use, by the op that asked for them, where the dump says so.
        occupancy: The bar that draws the pool: ``*`` in use, ``_`` free.
        ended: Whether its last line was seen: what comes now belongs to another dump.
    """

    DETAILS: ClassVar[frozenset[str]] = frozenset(
        (
            *("dump", "bin", "free_chunk", "used_chunk", "chunks", "sum"),
            *("pool", "limit", "in_use", "largest", "bar"),
        )
    )

    facts: Facts = dataclasses.field(default_factory=Facts)
    in_use: dict[int, int] = dataclasses.field(default_factory=dict)
    holders: dict[str, int] = dataclasses.field(default_factory=dict)
    occupancy: str | None = None
    ended: bool = False
    _bins: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    _available: int | None = None

    def add(self, name: str, groups: dict[str, str], count: int) -> None:
        """Take one detail.

        Args:
            name: The detail's name, one of ``DETAILS``.
            groups: What was read.
            count: The number that stands before the detail, for a line of the summary.
        """
        facts = self.facts
        size = parse_bytes(groups.get("size"))
        if name == "dump":
            facts.device, facts.where = device_of_allocator(groups["allocator"])
        elif name == "bin":
            pair = parse_bytes(groups["allocated"]), parse_bytes(groups["in_use"])
            if pair[0] is not None and pair[1] is not None and len(self._bins) < _BINS:
                self._bins[int(groups["bin"])] = pair[0], pair[1]
        elif name == "free_chunk":
            facts.largest_free_bytes = max(size or 0, facts.largest_free_bytes or 0)
        elif name == "used_chunk":
            op = clean(plain_op(groups["op"]) or groups["op"])
            if size is not None and (op in self.holders or len(self.holders) < _KEPT_OPS):
                self.holders[op] = self.holders.get(op, 0) + size
        elif name == "chunks":
            if size and count and len(self.in_use) < _KEPT_SIZES:
                self.in_use[size] = count
        elif name == "sum":
            facts.in_use_bytes = parse_bytes(groups["in_use"])
        elif name == "pool":
            facts.limit_bytes = parse_bytes(groups["limit"])
            self._available = parse_bytes(groups["available"])
        elif name == "limit":
            # The asynchronous allocator knows no limit and prints 0.
            facts.limit_bytes = size or facts.limit_bytes
        elif name == "in_use":
            facts.in_use_bytes = size
        elif name == "largest":
            # BFC never fills this in: 0 says nothing, whatever the free chunks above say.
            facts.largest_free_bytes = max(size or 0, facts.largest_free_bytes or 0) or None
        elif name == "bar":
            self.occupancy = groups["bar"]
            self.ended = True

    def told(self) -> Facts:
        """The facts, with what can be added up where the totals are missing."""
        facts = self.facts.replace()
        if facts.in_use_bytes is None and len(self._bins) == _BINS:
            facts.in_use_bytes = sum(in_use for _, in_use in self._bins.values())
        if facts.limit_bytes is not None and self._available is not None:
            facts.pool_bytes = max(facts.limit_bytes - self._available, 0)
        elif len(self._bins) == _BINS:
            facts.pool_bytes = sum(allocated for allocated, _ in self._bins.values())
        if self._available and facts.largest_free_bytes is not None:
            # What the pool may still take from the device can be given out as well.
            facts.largest_free_bytes = max(facts.largest_free_bytes, self._available)
        return facts

    def largest(self, number: int = 3) -> list[Chunks]:
        """The sizes that held most, the largest sum first."""
        chunks = [Chunks(count, size) for size, count in self.in_use.items()]
        return sorted(chunks, key=lambda one: one.total, reverse=True)[:number]

    def largest_holders(self, number: int = 3) -> list[tuple[str, int]]:
        """The ops that held most."""
        return sorted(self.holders.items(), key=lambda one: one[1], reverse=True)[:number]
