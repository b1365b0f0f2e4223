"""How much memory a process can really have here: the smallest of all that limits it."""

from __future__ import annotations

from legroom.machine.cgroup import read_cgroup
from legroom.machine.gpu import list_gpus
from legroom.machine.host import read_host

__all__ = ["device_limit", "host_available", "host_limit"]


def host_limit() -> int:
    """The most main memory this process could ever have: the host's, or its cgroup's limit."""
    total = read_host().total_bytes
    cgroup = read_cgroup()
    if cgroup is None or cgroup.limit_bytes is None:
        return total
    return min(total, cgroup.limit_bytes)


def host_available() -> int:
    """The main memory that can still be taken now, before swapping or a kill by the kernel."""
    available = read_host().available_bytes
    cgroup = read_cgroup()
    if cgroup is None or cgroup.available_bytes is None:
        return available
    return min(available, cgroup.available_bytes)


def device_limit() -> int:
    """The memory of the device that a training would run on: the first GPU, or the host.

    What 100 % means in a size, and what no cap can exceed.
    """
    gpus = list_gpus()
    return gpus[0].total_bytes if gpus else host_limit()
