"""How much memory a process can really have here: the smallest of all that limits it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from legroom.machine.cgroup import read_cgroup
from legroom.machine.gpu import list_gpus
from legroom.machine.host import read_host

__all__ = ["Reserve", "device_limit", "held_back", "host_available", "host_limit"]


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
    """The memory of the device that a training would run on: the first GPU, or the host.

    What 100 % means in a size, and what no cap can exceed.
    """
    gpus = list_gpus()
    return gpus[0].total_bytes if gpus else host_limit()
