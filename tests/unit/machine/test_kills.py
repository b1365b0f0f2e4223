from __future__ import annotations

from pathlib import Path

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


def test_kills_of_the_own_group_and_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, 3, 10)
    kills = KernelKills(tmp_path)
    kills.look()
    assert kills.just_now() == 0
    write(tmp_path, 4, 10)
    assert kills.just_now() == 1
    write(tmp_path, 3, 12)
    assert kills.just_now() == 2


def test_nothing_to_read_is_no_kill(tmp_path: Path) -> None:
    assert KernelKills(tmp_path).just_now() == 0
