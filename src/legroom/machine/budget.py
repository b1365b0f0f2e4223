"""How much memory a training device really has: what was read of it, judged. Pure.

A framework reserves most of a card when it starts, so that what the driver calls free afterwards
is the rest that it left, not the budget. The allocator's own limit is the budget, as long as the
card can still give that much: where the pool grows step by step, other processes may have taken
part of it meanwhile. Who asks must also know when none of the figures can be relied on: then a
batch is tried as it is, because on a GPU running out of memory is quick and clean.
"""

from __future__ import annotations

import dataclasses

from legroom.core.records import Record
from legroom.core.units import format_bytes

__all__ = [
    "CONTEXT_BYTES",
    "DeviceLimit",
    "DeviceReading",
    "describe_reading",
    "judge",
    "left_free",
    "would_reserve",
]

_MIB = 2**20
# What a CUDA context and its libraries take before the pool is made, about: 110 to 620 MiB were
# seen (T4, P100, A100, H200).
CONTEXT_BYTES = 450 * _MIB
# What TensorFlow leaves free of a card that has 2 GiB or more free, by the largest major compute
# capability that it holds for (gpu_device.cc, MinSystemMemory).
_SMALL, _LEFT_OF_SMALL = 2**31, 225 * _MIB
_LEFT_FREE = ((6, 500 * _MIB), (7, 1050 * _MIB), (8, 1536 * _MIB))
_LEFT_BY_NEWER = 1800 * _MIB


@dataclasses.dataclass(frozen=True)
class DeviceReading(Record):
    """What was read of the device that a training runs on; None for what can't be read.

    Attributes:
        device: Its name, "GPU:0" or "CPU:0".
        allocator_bytes: The limit of the framework's own allocator. A CPU's is a placeholder.
        grows: Whether the pool is taken from the card step by step, and not at the start.
        hard: Whether the allocator keeps to its limit.
        in_use_bytes: What the allocator has handed out.
        peak_bytes: The most it has handed out, as far back as it was counted: the pool has at
            least this much already.
        cap_bytes: The cap that the user has set.
        card_bytes: The card's memory, as the driver counts it.
        free_bytes: What nobody holds of it now, as the driver counts it.
    """

    device: str
    allocator_bytes: int | None = None
    grows: bool = False
    hard: bool = True
    in_use_bytes: int | None = None
    peak_bytes: int | None = None
    cap_bytes: int | None = None
    card_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is an accelerator, with memory of its own."""
        return not self.device.startswith("CPU")


@dataclasses.dataclass(frozen=True)
class DeviceLimit(Record):
    """The most bytes that a training can have of a device.

    Attributes:
        limit_bytes: The bytes; None where the device has no limit of its own, or it is not known.
        certain: Whether to rely on it. Where not, a batch is tried before it is cut.
        source: Whose word it is: "cap", "allocator", "driver", "host" or "nobody".
    """

    limit_bytes: int | None
    certain: bool
    source: str


def judge(reading: DeviceReading) -> DeviceLimit:
    """What the figures come to."""
    if not reading.is_gpu:
        if reading.cap_bytes is not None:
            return DeviceLimit(reading.cap_bytes, True, "cap")
        # No limit of its own. The host's memory is certain enough: past it the kernel kills, so
        # nothing is tried there for the sake of trying.
        return DeviceLimit(None, True, "host")
    limit, source = reading.allocator_bytes or 0, "allocator"
    if limit <= 0:
        limit, source = reading.cap_bytes or 0, "cap"
    in_reach = _in_reach(reading)
    if limit <= 0:
        # What is free may be the rest that a pool has left, so it is a lower bound.
        return DeviceLimit(in_reach, False, "nobody" if in_reach is None else "driver")
    if not reading.hard:
        return DeviceLimit(in_reach or limit, False, source if in_reach is None else "driver")
    if reading.card_bytes is None or reading.free_bytes is None or in_reach is None:
        # A pool that was taken at the start is there. One that grows may meet other processes.
        return DeviceLimit(limit, not reading.grows, source)
    if limit > reading.card_bytes:
        return DeviceLimit(limit, False, source)  # part of it is main memory, paged in and out
    taken = not reading.grows and reading.card_bytes - reading.free_bytes >= limit
    if taken or in_reach >= limit:
        return DeviceLimit(limit, True, source)
    return DeviceLimit(in_reach, False, "driver")


def _in_reach(reading: DeviceReading) -> int | None:
    """What the pool has, as far as is known, and what it could still take of the card."""
    if reading.free_bytes is None:
        return None
    return max(reading.in_use_bytes or 0, reading.peak_bytes or 0) + reading.free_bytes


def left_free(free_bytes: int, capability: int | None) -> int:
    """What TensorFlow leaves to the driver and to libraries when it reserves a card.

    Args:
        free_bytes: What is free of the card.
        capability: The card's major compute capability; None where it is not known.
    """
    if free_bytes < _SMALL:
        return _LEFT_OF_SMALL
    for most, left in _LEFT_FREE:
        if capability is not None and capability <= most:
            return left
    return _LEFT_BY_NEWER


def would_reserve(free_bytes: int, capability: int | None) -> int:
    """The pool that TensorFlow would make if it started on a card now, about."""
    free = max(0, free_bytes - CONTEXT_BYTES)
    left = left_free(free, capability)
    return free - left if left < free else free


def describe_reading(reading: DeviceReading, framework: str = "TensorFlow") -> str:
    """What was read, from whom, and whether they agree: a line for people."""
    limit = judge(reading)
    device = reading.device
    if not reading.is_gpu:
        if limit.limit_bytes is None:
            return f"{device} has no limit of its own but the host's memory"
        size = format_bytes(limit.limit_bytes)
        return f"{framework}'s allocator for {device} is capped at {size}"
    if reading.allocator_bytes:
        size = format_bytes(reading.allocator_bytes)
        told = f"{framework}'s allocator may use {size} of {device}"
    else:
        told = f"{framework}'s allocator does not tell its limit on {device}"
    if not reading.hard:
        told += ", a limit that it does not keep to"
    elif reading.grows:
        told += ", as it grows"
    if reading.card_bytes is None or reading.free_bytes is None:
        told += "; the driver does not answer"
    else:
        told += (
            f"; the driver counts {format_bytes(reading.card_bytes)} in all and "
            f"{format_bytes(reading.free_bytes)} free"
        )
        if reading.allocator_bytes and reading.hard:
            told += ": they agree" if limit.certain else ": they DISAGREE"
    return told if limit.certain else f"{told}; not certain, so batches are tried whole first"
