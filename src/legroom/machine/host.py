"""The host's memory, as the kernel counts it.

Inside a container these are the figures of the whole host: see `legroom.machine.memory` for
what this process can really have.
"""

from __future__ import annotations

import dataclasses
import os

from legroom.core.records import Record

__all__ = ["HostMemory", "read_host", "usable_cores"]


@dataclasses.dataclass(frozen=True)
class HostMemory(Record):
    """The host's main memory.

    Attributes:
        total_bytes: What is built in.
        available_bytes: What can be taken without swapping, as the kernel estimates it.
    """

    total_bytes: int
    available_bytes: int


def read_host() -> HostMemory:
    """Read the host's memory now."""
    import psutil  # here, so that a command which needs no figures does not load it

    memory = psutil.virtual_memory()
    return HostMemory(total_bytes=int(memory.total), available_bytes=int(memory.available))


def usable_cores() -> int:
    """The cores that this process may compute on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
