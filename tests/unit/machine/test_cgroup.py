"""Cgroup trees as found in the wild, rebuilt in a folder; and a real one, where it can be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.machine.cgroup import read_cgroup

GIB = 2**30
UNLIMITED_V1 = 9223372036854771712


def put(root: Path, **files: str | int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(f"{content}\n")


def v2(root: Path, group: str, *, seen_root: str = "/") -> Path:
    """A machine with cgroup version 2; returns the mount point."""
    put(root / "proc/self", cgroup=f"0::{group}")
    put(
        root / "proc/self",
        mountinfo=f"29 23 0:26 {seen_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw",
    )
    return root / "sys/fs/cgroup"


def v1(root: Path, group: str, *, seen_root: str = "/") -> Path:
    """A machine with cgroup version 1 and an empty version 2 beside it; returns the mount point."""
    put(root / "proc/self", cgroup=f"5:cpu,cpuacct:/x\n4:memory:{group}\n1:name=systemd:/\n0::/")
    put(
        root / "proc/self",
        mountinfo="31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"35 31 0:32 {seen_root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    (root / "sys/fs/cgroup/unified").mkdir(parents=True)
    return root / "sys/fs/cgroup/memory"


def test_v2_smallest_limit_on_the_way_up(tmp_path: Path) -> None:
    mount = v2(tmp_path, "/a/b/c")
    put(mount / "a/b/c", memory__max=8 * GIB, memory__current=GIB, memory__events="oom_kill 3")
    put(mount / "a/b", memory__max=4 * GIB, memory__current=3 * GIB)
    put(mount / "a", memory__max="max", memory__current=3 * GIB)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.hierarchy == 2
    assert cgroup.limit_bytes == 4 * GIB
    assert cgroup.used_bytes == 3 * GIB
    assert cgroup.available_bytes == GIB
    assert cgroup.oom_kills == 3


def test_available_counts_the_tightest_group_not_the_smallest(tmp_path: Path) -> None:
    """A larger limit above that neighbours have used up is what ends us first."""
    mount = v2(tmp_path, "/a/b")
    put(mount / "a/b", memory__max=4 * GIB, memory__current=GIB)
    put(mount / "a", memory__max=8 * GIB, memory__current=7 * GIB + GIB // 2)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.limit_bytes == 4 * GIB
    assert cgroup.available_bytes == GIB // 2


def test_file_cache_counts_as_free(tmp_path: Path) -> None:
    mount = v2(tmp_path, "/a")
    put(mount / "a", memory__max=4 * GIB, memory__current=3 * GIB)
    put(mount / "a", memory__stat=f"anon 5\ninactive_file {2 * GIB}\nactive_file 7")
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.used_bytes == 3 * GIB
    assert cgroup.available_bytes == 3 * GIB


def test_v2_container_sees_its_group_as_root(tmp_path: Path) -> None:
    mount = v2(tmp_path, "/")
    put(mount, memory__max=2 * GIB, memory__current=GIB, memory__events="low 0\noom_kill 1")
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.limit_bytes == 2 * GIB
    assert cgroup.oom_kills == 1


def test_v1_with_v2_beside_it(tmp_path: Path) -> None:
    mount = v1(tmp_path, "/jobs/7")
    put(mount, memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=GIB)
    put(mount / "jobs", memory__limit_in_bytes=6 * GIB, memory__usage_in_bytes=2 * GIB)
    put(mount / "jobs", memory__stat=f"inactive_file 1\ntotal_inactive_file {GIB}")
    put(mount / "jobs/7", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=GIB)
    put(mount / "jobs/7", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.hierarchy == 1
    assert cgroup.limit_bytes == 6 * GIB
    assert cgroup.available_bytes == 5 * GIB
    assert cgroup.oom_kills == 2


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner"])
def test_v1_docker_names_the_group_as_the_host_does(tmp_path: Path, group: str) -> None:
    mount = v1(tmp_path, group, seen_root="/docker/abc")
    put(mount, memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=GIB)
    put(mount / "inner", memory__limit_in_bytes=UNLIMITED_V1, memory__usage_in_bytes=GIB)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.limit_bytes == 3 * GIB


@pytest.mark.parametrize("group", ["/elsewhere", "/../sibling", "/docker/abcd"])
def test_a_group_outside_of_the_mount_falls_back_to_its_root(tmp_path: Path, group: str) -> None:
    mount = v2(tmp_path, group, seen_root="/docker/abc")
    put(mount, memory__max=3 * GIB, memory__current=GIB)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.limit_bytes == 3 * GIB


def test_no_limit_anywhere(tmp_path: Path) -> None:
    mount = v2(tmp_path, "/a")
    put(mount / "a", memory__max="max", memory__current=GIB)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert (cgroup.limit_bytes, cgroup.available_bytes) == (None, None)
    assert cgroup.used_bytes == GIB


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    v2(tmp_path, "/")
    put(tmp_path / "proc/self", mountinfo=r"29 23 0:26 / /my\040groups rw - cgroup2 cgroup2 rw")
    put(tmp_path / "my groups", memory__max=GIB, memory__current=5)
    cgroup = read_cgroup(tmp_path)
    assert cgroup is not None
    assert cgroup.limit_bytes == GIB


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [
        ("", ""),
        ("nonsense", "also nonsense\n1 2 3 - cgroup2"),
        ("0::/a", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"),  # no memory files there
        ("4:memory:/a", ""),
    ],
)
def test_nothing_to_be_read(tmp_path: Path, cgroup: str, mountinfo: str) -> None:
    put(tmp_path / "proc/self", cgroup=cgroup, mountinfo=mountinfo)
    assert read_cgroup(tmp_path) is None
    assert read_cgroup(tmp_path / "nowhere") is None


@given(limits=st.lists(st.none() | st.integers(1, 2**50), min_size=1, max_size=6))
def test_the_smallest_of_any_chain(tmp_path_factory: pytest.TempPathFactory, limits: list) -> None:
    root = tmp_path_factory.mktemp("machine")
    group = mount = v2(root, "/" + "/".join("g" for _ in limits))
    for limit in limits:
        group = group / "g"
        put(group, memory__max="max" if limit is None else limit, memory__current=0)
    assert group.is_relative_to(mount)
    cgroup = read_cgroup(root)
    assert cgroup is not None
    assert cgroup.limit_bytes == min((n for n in limits if n is not None), default=None)
    assert cgroup.available_bytes == cgroup.limit_bytes


@contextlib.contextmanager
def real_group(limit: int) -> Iterator[Path]:
    """A real child memory cgroup; only root can make one, and not in every container."""
    controller = {1: "memory", 2: ""}
    own = read_cgroup()
    if own is None:
        pytest.skip("there is no memory cgroup here")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    group = next(x.split(":", 2)[2] for x in lines if x.split(":")[1] == controller[own.hierarchy])
    base = Path("/sys/fs/cgroup") / controller[own.hierarchy] / group.lstrip("/")
    folder = base / f"legroom-test-{os.getpid()}"
    try:
        folder.mkdir()
        name = "memory.limit_in_bytes" if own.hierarchy == 1 else "memory.max"
        (folder / name).write_text(str(limit))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"a memory cgroup can't be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def run_in(group: Path, code: str) -> subprocess.CompletedProcess[str]:
    enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
    return subprocess.run([sys.executable, "-c", enter + code], capture_output=True, text=True)


def test_the_real_thing() -> None:
    """A process in a real cgroup sees its limit, and a kill by the kernel is counted."""
    with real_group(200 * 2**20) as group:
        asked = (
            "from legroom.machine.memory import host_available, host_limit\n"
            "from legroom.machine.cgroup import read_cgroup\n"
            "print(host_limit(), host_available(), read_cgroup().oom_kills)"
        )
        before = run_in(group, asked)
        assert before.returncode == 0, before.stderr
        limit, available, kills = map(int, before.stdout.split())
        assert limit == 200 * 2**20
        assert 100 * 2**20 < available < limit
        killed = run_in(group, "b = bytearray(10**9)\nb[::4096] = b'x' * len(b[::4096])")
        assert killed.returncode == -9
        after = run_in(group, asked)
        assert int(after.stdout.split()[2]) == kills + 1
