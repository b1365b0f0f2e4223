"""The memory of a process and all its descendants, whoever started it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from legroom.core.records import Record
from legroom.machine.cgroup import read_cgroup
from legroom.machine.gpu import Gpu, list_gpus
from legroom.machine.host import read_host

__all__ = ["TreeReading", "TreeWatch", "held_by"]

# Asking the driver takes longer than all the rest.
_GPUS_EVERY = 1.0


@dataclasses.dataclass(frozen=True)
class TreeReading(Record):
    """What a process tree holds at a moment.

    Attributes:
        at: When, in seconds since the epoch.
        processes: How many there are.
        host_bytes: Their main memory; what they share counts once where the kernel tells.
        host_limit_bytes: What their cgroup, or the host, allows at most.
        cgroup_bytes: What their cgroup uses, file caches included; None where there is none.
        gpu_bytes: What they hold of GPUs; None where there is no GPU, or the driver does not tell
            whose it is: in a container it often names processes by numbers of the host's.
        gpu_used_bytes: What is in use of all GPUs that are visible, whoever holds it.
        gpu_total_bytes: The memory of all of them.
    """

    at: float
    processes: int
    host_bytes: int
    host_limit_bytes: int
    cgroup_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_used_bytes: int | None = None
    gpu_total_bytes: int | None = None


class TreeWatch:
    """Reads a process tree's memory, again and again.

    Args:
        pid: The process at its root.

    Raises:
        psutil.Error: If there is no such process.
    """

    def __init__(self, pid: int) -> None:
        import psutil

        self._psutil = psutil
        self._root = psutil.Process(pid)
        self._gpus: list[Gpu] = []
        self._gpus_read = float("-inf")

    def read(self) -> TreeReading | None:
        """Read it now; None when the process has ended."""
        try:
            if self._root.status() == self._psutil.STATUS_ZOMBIE:
                return None
            processes = [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            return None
        sizes = {one.pid: size for one in processes if (size := self._size(one)) is not None}
        if self._root.pid not in sizes:
            return None
        cgroup = read_cgroup(pid=self._root.pid)
        limit = read_host().total_bytes
        if cgroup is not None and cgroup.limit_bytes is not None:
            limit = min(limit, cgroup.limit_bytes)
        gpus = self._read_gpus()
        return TreeReading(
            at=time.time(),
            processes=len(sizes),
            host_bytes=sum(sizes.values()),
            host_limit_bytes=limit,
            cgroup_bytes=None if cgroup is None else cgroup.used_bytes,
            gpu_bytes=held_by(gpus, set(sizes)),
            gpu_used_bytes=sum(one.total_bytes - one.free_bytes for one in gpus) if gpus else None,
            gpu_total_bytes=sum(one.total_bytes for one in gpus) if gpus else None,
        )

    def _size(self, process: Any) -> int | None:
        # The kernel's own sum of proportional shares: what is shared counts once in all.
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        try:
            return int(process.memory_info().rss)
        except self._psutil.Error:
            return None

    def _read_gpus(self) -> list[Gpu]:
        now = time.monotonic()
        if now - self._gpus_read >= _GPUS_EVERY:
            self._gpus, self._gpus_read = list_gpus(), now
        return self._gpus


def held_by(gpus: Sequence[Gpu], pids: Container[int]) -> int | None:
    """What processes hold of GPUs; None where that can't be told."""
    holders = [holder for gpu in gpus for holder in gpu.holders]
    mine = [holder.used_bytes for holder in holders if holder.pid in pids]
    # One without a name is not to be seen from here, and may be any of them under another number.
    strangers = any(not holder.name for holder in holders if holder.pid not in pids)
    if not gpus or strangers or any(size is None for size in mine):
        return None
    return sum(size or 0 for size in mine)
