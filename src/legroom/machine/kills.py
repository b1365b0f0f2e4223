"""How many processes the kernel has killed for memory: in this control group, or just now here."""

from __future__ import annotations

import time
from pathlib import Path

from legroom.machine.cgroup import read_cgroup
from legroom.machine.host import read_host

__all__ = ["KernelKills"]

_JUST_NOW = 5.0  # seconds
_FULL = 0.08  # of the machine's memory, or less, was still free


class KernelKills:
    """Counts the kernel's kills from now on.

    A count of the own control group is about the own processes. That of the whole machine is about
    everyone's, and most of those kills are in someone else's group: they count only if they are of
    the last seconds and the machine itself was full.

    Args:
        root: Where ``/proc`` and the cgroup mounts are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._group = self._in_group()
        self._looks: list[tuple[float, int, float]] = []
        self.look()

    def look(self) -> None:
        """Note the count of the whole machine and what is free, now and then."""
        now = time.monotonic()
        self._looks.append((now, self._on_machine(), self._free()))
        while len(self._looks) > 1 and self._looks[1][0] < now - _JUST_NOW:
            self._looks.pop(0)

    def just_now(self) -> int:
        """How many were killed."""
        in_group = max(0, self._in_group() - self._group)
        if in_group or min(free for _, _, free in self._looks) > _FULL:
            return in_group
        return max(0, self._on_machine() - self._looks[0][1])

    def _in_group(self) -> int:
        group = read_cgroup(self._root)
        return 0 if group is None else group.oom_kills

    @staticmethod
    def _free() -> float:
        host = read_host()
        return host.available_bytes / max(1, host.total_bytes)

    def _on_machine(self) -> int:
        try:
            text = (self._root / "proc/vmstat").read_text()
        except OSError:
            return 0
        return next(
            (int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0
        )
