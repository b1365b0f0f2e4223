"""The memory of a process and what it has started."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from legroom.machine.gpu import Gpu, GpuHolder
from legroom.machine.tree import TreeWatch, held_by

CHILD = "held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); print(flush=True)"


def test_a_process_and_its_children_count_once_each() -> None:
    inner = CHILD.format(size=60_000_000) + "; import sys; sys.stdin.read()"
    outer = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
        f"{CHILD.format(size=90_000_000)}\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        tree = TreeWatch(process.pid)
        reading = tree.read()
        assert reading is not None
        assert reading.processes == 2
        assert 150_000_000 < reading.host_bytes < 250_000_000
        assert reading.host_limit_bytes > reading.host_bytes
    finally:
        process.communicate()
    assert process.returncode == 0
    end = time.monotonic() + 5
    while tree.read() is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert tree.read() is None


def gpu(*holders: GpuHolder) -> Gpu:
    return Gpu(0, "GPU", "uuid", 100, 40, holders)


@pytest.mark.parametrize(
    ("gpus", "held"),
    [
        ([], None),
        ([gpu()], 0),
        ([gpu(GpuHolder(1, "python", 10), GpuHolder(9, "other", 20))], 10),
        ([gpu(GpuHolder(1, "python", 10)), gpu(GpuHolder(2, "python", 5))], 15),
        ([gpu(GpuHolder(1, "python", None))], None),
        ([gpu(GpuHolder(77, "", 10))], None),  # perhaps ours, under the host's number
    ],
)
def test_whose_memory_of_a_gpu_it_is(gpus: list[Gpu], held: int | None) -> None:
    assert held_by(gpus, {1, 2}) == held
