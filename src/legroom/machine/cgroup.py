"""The memory limit of the process's control group, versions 1 and 2.

A container's limit is not in the figures of the host. It stands in the cgroup file system, at the
process's own group or at any group above it: the smallest one on the way up counts. Everything
here reads files below a root that the tests can put elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path, PurePosixPath

from legroom.core.records import Record

__all__ = ["Cgroup", "read_cgroup"]

# Version 1 writes "no limit" as the largest page-aligned number; real memories end far below.
_NO_LIMIT = 2**60


@dataclasses.dataclass(frozen=True)
class Cgroup(Record):
    """What the control groups above this process say about memory.

    Attributes:
        hierarchy: 1 or 2, the version of the cgroup interface.
        limit_bytes: The smallest limit on the way up, or None where there is none.
        used_bytes: What the processes under that limit use, file caches included; the own group's
            usage where there is no limit.
        available_bytes: What can still be taken before some limit is reached: file caches that the
            kernel would give up count as free. None where there is no limit.
        oom_kills: How many processes of the own group the kernel has killed for memory.
    """

    hierarchy: int
    limit_bytes: int | None
    used_bytes: int | None
    available_bytes: int | None
    oom_kills: int


@dataclasses.dataclass(frozen=True)
class _Files:
    """The names of one version's files."""

    hierarchy: int
    limit: str
    usage: str
    cache: tuple[str, ...]  # keys of memory.stat, the first one found counts
    kills: str


_V1 = _Files(
    hierarchy=1,
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    cache=("total_inactive_file", "inactive_file"),
    kills="memory.oom_control",
)
_V2 = _Files(
    hierarchy=2,
    limit="memory.max",
    usage="memory.current",
    cache=("inactive_file",),
    kills="memory.events",
)


def read_cgroup(root: Path = Path("/"), pid: int | str = "self") -> Cgroup | None:
    """Read the memory cgroup of a process.

    Args:
        root: Where ``/proc`` and the cgroup mounts are.
        pid: Whose group; the reader's own by default.

    Returns:
        None where there is no memory cgroup to be read: not Linux, or nothing mounted.
    """
    own = _own_group(root, pid)
    if own is None:
        return None
    files, mount, folder = own

    limit: int | None = None
    used = _read_number(folder / files.usage)
    available: int | None = None
    for group in _upwards(folder, mount):
        group_limit = _read_number(group / files.limit)
        if group_limit is None or group_limit >= _NO_LIMIT:
            continue
        group_used = _read_number(group / files.usage)
        if limit is None or group_limit < limit:
            limit, used = group_limit, group_used
        stat = _read_counters(group / "memory.stat")
        cache = next((stat[key] for key in files.cache if key in stat), 0)
        free = max(0, group_limit - max(0, (group_used or 0) - cache))
        available = free if available is None else min(available, free)

    return Cgroup(
        hierarchy=files.hierarchy,
        limit_bytes=limit,
        used_bytes=used,
        available_bytes=available,
        oom_kills=_read_counters(folder / files.kills).get("oom_kill", 0),
    )


def _own_group(root: Path, pid: int | str) -> tuple[_Files, Path, Path] | None:
    """Find the version in force, its mount point and the process's own folder in it.

    On a machine with both mounted, memory is in one of them only: version 1 where a line of
    ``/proc/<pid>/cgroup`` names the memory controller.
    """
    process = root / "proc" / str(pid)
    groups = _parse_groups(_read_text(process / "cgroup"))
    mounts = _parse_mounts(_read_text(process / "mountinfo"))
    for files, controller in ((_V1, "memory"), (_V2, "")):
        if controller not in groups or controller not in mounts:
            continue
        seen_root, point = mounts[controller]
        mount = root / point.lstrip("/")
        folder = _below(mount, groups[controller], seen_root)
        if any((group / files.usage).is_file() for group in _upwards(folder, mount)):
            return files, mount, folder
    return None


def _below(mount: Path, group: str, seen_root: str) -> Path:
    """The folder of a group below a mount that may show only a part of the tree.

    In a container without a cgroup namespace the process reads its group as the host names it,
    while the mount shows that group as its root. A group outside of what is mounted can't be seen;
    the mount's own root is the nearest thing there is.
    """
    try:
        inside = PurePosixPath(group).relative_to(PurePosixPath(seen_root))
    except ValueError:
        return mount
    folder = mount / inside
    return folder if ".." not in inside.parts and folder.is_dir() else mount


def _upwards(folder: Path, mount: Path) -> list[Path]:
    """The folder and all above it, up to the mount point."""
    return [folder, *(above for above in folder.parents if above.is_relative_to(mount))]


def _parse_groups(text: str) -> dict[str, str]:
    """``/proc/<pid>/cgroup``: the group's path by controller, ``""`` for version 2."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _parse_mounts(text: str) -> dict[str, tuple[str, str]]:
    """``/proc/<pid>/mountinfo``: root and mount point by controller, ``""`` for version 2."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, end = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(end) < 3:
            continue
        place = _unescape(fields[3]), _unescape(fields[4])
        if end[0] == "cgroup2":
            mounts.setdefault("", place)
        elif end[0] == "cgroup" and "memory" in end[2].split(","):
            mounts.setdefault("memory", place)
    return mounts


def _unescape(field: str) -> str:
    """Mountinfo writes blanks and backslashes in paths as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    """A file with one number in it; None for ``max``, for anything else and for no file."""
    text = _read_text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read_counters(path: Path) -> dict[str, int]:
    """A file of lines with a name and a number."""
    counters: dict[str, int] = {}
    for line in _read_text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.isascii() and value.isdigit():
            counters[name] = int(value)
    return counters
