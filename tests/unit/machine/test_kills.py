from __future__ import annotations

from pathlib import Path

import pytest

from legroom.machine.host import HostMemory
from legroom.machine.kills import KernelKills


def write(root: Path, group: int, machine: int) -> None:
    for path, text in {
        "proc/self/cgroup": "0::/box\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        "sys/fs/cgroup/box/memory.current": "1000\n",
        "sys/fs/cgroup/box/memory.events": f"low 0\noom 1\noom_kill {group}\n",
        "proc/vmstat": f"nr_free_pages 5\noom_kill {machine}\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_kills_of_the_own_group(tmp_path: Path) -> None:
    write(tmp_path, 3, 10)
    kills = KernelKills(tmp_path)
    kills.look()
    assert kills.just_now() == 0
    write(tmp_path, 4, 11)
    assert kills.just_now() == 1


@pytest.mark.parametrize(("free", "counted"), [(50, 0), (5, 2)])
def test_kills_of_the_machine_are_ours_only_if_it_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, counted: int
) -> None:
    host = HostMemory(total_bytes=100, available_bytes=free)
    monkeypatch.setattr("legroom.machine.kills.read_host", lambda: host)
    write(tmp_path, 3, 10)
    kills = KernelKills(tmp_path)
    write(tmp_path, 3, 12)
    assert kills.just_now() == counted


def test_nothing_to_read_is_no_kill(tmp_path: Path) -> None:
    assert KernelKills(tmp_path).just_now() == 0
