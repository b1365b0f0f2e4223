"""The GPUs that a framework in this process would see, and who else holds their memory.

Not yet verified on many machines, so it is kept thin: it asks NVML and believes what it says.
Without NVML, a driver or a card there are simply no GPUs.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from legroom.core.records import Record

__all__ = ["Gpu", "GpuHolder", "card_of", "list_gpus"]


@dataclasses.dataclass(frozen=True)
class GpuHolder(Record):
    """A process that holds memory of a GPU.

    Attributes:
        pid: The process's id, as the driver sees it (in a container, often another one).
        name: Its name, or empty where it can't be read.
        used_bytes: What it holds, or None where the driver does not tell.
    """

    pid: int
    name: str
    used_bytes: int | None


@dataclasses.dataclass(frozen=True)
class Gpu(Record):
    """One GPU.

    Attributes:
        index: Its number among the ones visible here: what a framework calls ``GPU:index``.
        name: As the vendor calls it.
        uuid: Its identity across machines and reboots.
        total_bytes: What is built in.
        free_bytes: What nobody holds now.
        holders: The other processes that hold memory of it.
        capability: Its major compute capability, where the driver tells.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    holders: tuple[GpuHolder, ...] = ()
    capability: int | None = None


def list_gpus() -> list[Gpu]:
    """List the GPUs that are visible here, as ``CUDA_VISIBLE_DEVICES`` has it.

    CUDA numbers cards by speed unless ``CUDA_DEVICE_ORDER`` says otherwise, NVML by place on the
    bus: in a machine with unequal cards the order may differ from the framework's. Of a card that
    is cut into parts (MIG) a program gets one part, the one it names or the first.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no card: NVML's errors are of many kinds
        return []
    try:
        if wanted is not None and wanted.strip().startswith("MIG-"):
            part = wanted.split(",")[0].strip()
            return [_read_gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(part), 0, part)]
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        return [
            _read_gpu(pynvml, _part_of(pynvml, handles[number]), index, uuids[number])
            for index, number in enumerate(_visible(uuids, wanted))
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def card_of(number: int, parts: Sequence[int]) -> int | None:
    """Which of the visible cards a logical GPU is on.

    Args:
        number: The logical GPU's.
        parts: How many logical GPUs each visible card has.
    """
    for card, count in enumerate(parts):
        if number < count:
            return card
        number -= count
    return None


def _visible(uuids: Sequence[str], wanted: str | None) -> list[int]:
    """Which of the cards ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    As CUDA reads it: numbers or the beginnings of UUIDs; the first entry that names no card ends
    the list; the same card twice means none at all.
    """
    if wanted is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in wanted.split(","):
        entry = entry.strip()
        if entry.isascii() and entry.isdigit():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        elif entry:
            matches = [number for number, uuid in enumerate(uuids) if uuid.startswith(entry)]
        else:
            matches = []
        if len(matches) != 1:
            break
        chosen += matches
    return chosen if len(set(chosen)) == len(chosen) else []


def _part_of(pynvml: Any, handle: Any) -> Any:
    """The card itself, or its first part where it is cut into parts: CUDA uses no more than one."""
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    except pynvml.NVMLError:
        pass  # most cards can't be cut
    return handle


def _read_capability(pynvml: Any, handle: Any) -> int | None:
    for ask in (lambda one: one, pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle):
        try:
            return int(pynvml.nvmlDeviceGetCudaComputeCapability(ask(handle))[0])
        except pynvml.NVMLError:
            continue
    return None


def _read_gpu(pynvml: Any, handle: Any, index: int, uuid: str) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        uuid=uuid,
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        holders=tuple(_read_holders(pynvml, handle)),
        capability=_read_capability(pynvml, handle),
    )


def _read_holders(pynvml: Any, handle: Any) -> list[GpuHolder]:
    """Who else holds the card. Some drivers and containers do not tell: then nobody is named."""
    used: dict[int, int | None] = {}
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            processes = ask(handle)
        except pynvml.NVMLError:
            continue
        for process in processes:
            used[int(process.pid)] = process.usedGpuMemory
    return [
        GpuHolder(pid=pid, name=_process_name(pid), used_bytes=None if held is None else int(held))
        for pid, held in sorted(used.items())
        if pid != os.getpid()
    ]


def _process_name(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except (psutil.Error, ValueError):
        return ""


def _text(value: str | bytes) -> str:
    """NVML's Python package returned bytes before version 12."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
