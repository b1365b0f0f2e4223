from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from legroom.machine.gpu import Gpu, GpuHolder, _visible, card_of, list_gpus

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,7,1", [0]),  # the first entry that names no card ends the list
        ("0,,1", [0]),
        ("-1,0", []),
        ("1,1", []),  # the same card twice is an error to CUDA: nothing is visible
        ("GPU-cccc-3", [2]),
        ("GPU-c,GPU-aab", [2, 1]),
        ("GPU-aa", []),  # not unique
        ("GPU-cccc-3,2", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(wanted: str | None, numbers: list[int]) -> None:
    assert _visible(UUIDS, wanted) == numbers


MEMORY = {
    "GPU-a": (15_360, 14_900),
    "GPU-b": (40_960, 30_000),
    "MIG-1": (4_864, 4_800),
    "MIG-2": (9_856, 9_800),
}


class Nvml:
    """An NVML with two cards, the second cut into parts; in the forms that its package has."""

    class NVMLError(Exception):
        """What it raises."""

    def __init__(self, cut: bool) -> None:
        self.cut = cut

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return ["GPU-a", "GPU-b"][number]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in MEMORY:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()  # as before version 12

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"card {handle}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "GPU-a":
            raise self.NVMLError("Not Supported")
        return [int(self.cut), int(self.cut)]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:
        return ["MIG-1", "MIG-2"][number]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        if not handle.startswith("MIG"):
            raise self.NVMLError("Invalid Argument")
        return "GPU-b"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        if handle.startswith("MIG"):
            raise self.NVMLError("Not Supported")
        return {"GPU-a": (7, 5), "GPU-b": (8, 0)}[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        total, free = MEMORY[handle]
        return SimpleNamespace(total=total * 2**20, free=free * 2**20)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:
        raise self.NVMLError("No Permission")

    nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetComputeRunningProcesses


@pytest.mark.parametrize(
    ("cut", "wanted", "seen"),
    [
        (False, None, [(15_360, 7), (40_960, 8)]),
        (False, "1", [(40_960, 8)]),
        (True, None, [(15_360, 7), (4_864, 8)]),  # of a cut card a program gets its first part
        (True, "MIG-2", [(9_856, 8)]),
        (True, "MIG-2,MIG-1", [(9_856, 8)]),  # and never more than one
        (True, "MIG-9", []),
    ],
)
def test_cards_and_parts_of_cards(
    monkeypatch: pytest.MonkeyPatch, cut: bool, wanted: str | None, seen: list[tuple[int, int]]
) -> None:
    """No card that can be cut is here: what the driver would say is played."""
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(cut))
    if wanted is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    found = list_gpus()
    assert [(gpu.total_bytes // 2**20, gpu.capability) for gpu in found] == seen
    assert [gpu.index for gpu in found] == list(range(len(seen)))


def test_record_round_trip() -> None:
    holder = GpuHolder(pid=7, name="python", used_bytes=None)
    gpu = Gpu(0, "H200", "GPU-1", total_bytes=10, free_bytes=4, holders=(holder,))
    assert Gpu.from_json(gpu.to_json()) == gpu


@pytest.mark.parametrize(
    ("number", "parts", "card"),
    [
        (0, [1], 0),
        (1, [1, 1], 1),
        (0, [2, 1], 0),  # two logical devices on the first card
        (1, [2, 1], 0),
        (2, [2, 1], 1),
        (3, [2, 1], None),
        (0, [], None),
    ],
)
def test_the_card_of_a_logical_device(number: int, parts: list[int], card: int | None) -> None:
    assert card_of(number, parts) == card
