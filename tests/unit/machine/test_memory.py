from __future__ import annotations

import os
from pathlib import Path

import pytest

from legroom.machine.cgroup import read_cgroup
from legroom.machine.gpu import list_gpus
from legroom.machine.host import read_host
from legroom.machine.memory import device_limit, device_total, host_available, host_limit


def meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {key: int(rest.split()[0]) * 1024 for key, rest in (x.split(":") for x in lines)}


def test_host_is_what_the_kernel_says() -> None:
    host, kernel = read_host(), meminfo()
    assert host.total_bytes == kernel["MemTotal"]
    assert host.available_bytes == pytest.approx(kernel["MemAvailable"], rel=0.2)


def test_limits_are_never_more_than_the_host() -> None:
    host, cgroup = read_host(), read_cgroup()
    assert 0 < host_available() <= host.total_bytes
    limits = [host.total_bytes]
    if cgroup is not None and cgroup.limit_bytes is not None:
        limits.append(cgroup.limit_bytes)
    assert host_limit() == min(limits)


def test_device_is_the_host_where_no_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert list_gpus() == []
    assert device_limit() == device_total() == host_limit()


@pytest.mark.gpu
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs an NVIDIA driver")
def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    first, *_ = list_gpus()
    assert first.index == 0
    assert first.name
    assert 0 < first.free_bytes <= first.total_bytes
    assert first.capability is not None
    assert 0.9 * first.free_bytes < device_limit() < first.free_bytes < device_total()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", first.uuid[:12])
    assert [gpu.uuid for gpu in list_gpus()] == [first.uuid]
