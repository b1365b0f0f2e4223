"""How much memory a process can really have here: the smallest of all that limits it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from legroom.machine.budget import would_reserve
from legroom.machine.cgroup import read_cgroup
from legroom.machine.gpu import list_gpus
from legroom.machine.host import read_host

__all__ = ["Reserve", "device_limit", "device_total", "held_back", "host_available", "host_limit"]


@dataclasses.dataclass(eq=False)
class Reserve:
    """Main memory that is held back for something.

    Attributes:
        left: The bytes of it that are not in use yet. Set by who uses them.
    """

    left: int


_reserves: list[Reserve] = []


def host_limit() -> int:
    """The most main memory this process could ever have: the host's, or its cgroup's limit."""
    total = read_host().total_bytes
    cgroup = read_cgroup()
    if cgroup is None or cgroup.limit_bytes is None:
        return total
    return min(total, cgroup.limit_bytes)


def host_available(*, with_held_back: bool = False) -> int:
    """The main memory that can still be taken now, before swapping or a kill by the kernel.

    What was held back for something else is not part of it.

    Args:
        with_held_back: Asked by who it was held back for.
    """
    available = read_host().available_bytes
    cgroup = read_cgroup()
    if cgroup is not None and cgroup.available_bytes is not None:
        available = min(available, cgroup.available_bytes)
    held = 0 if with_held_back else sum(reserve.left for reserve in _reserves)
    return max(0, available - held)


@contextlib.contextmanager
def held_back(count: int) -> Iterator[Reserve]:
    """Hold main memory back for something that will need it, as long as the context lasts."""
    reserve = Reserve(count)
    _reserves.append(reserve)
    try:
        yield reserve
    finally:
        _reserves.remove(reserve)


def device_limit() -> int:
    """The memory that a training which starts now would get: of the first GPU, or of the host.

    Of a card that is what TensorFlow would reserve: what is free now, less what it leaves.
    """
    gpus = list_gpus()
    return would_reserve(gpus[0].free_bytes, gpus[0].capability) if gpus else host_limit()


def device_total() -> int:
    """The memory that no cap can exceed: all that the first GPU has, or the host allows."""
    gpus = list_gpus()
    return gpus[0].total_bytes if gpus else host_limit()
