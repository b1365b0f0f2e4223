"""The main memory this process holds, and the way back for what it has freed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable

__all__ = [
    "ResidentMemory",
    "fallen_bytes",
    "heap_bytes",
    "peak_resident_bytes",
    "resident_bytes",
    "return_freed_pages",
]


class ResidentMemory:
    """Reads the main memory of this process, cheaply enough to be asked after each step.

    On Linux the file that tells is kept open, so that a reading is one system call.
    """

    def __init__(self) -> None:
        self._file = -1
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._owner = os.getpid()
        self._page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

    def __call__(self) -> int:
        """The bytes now."""
        if self._file >= 0 and os.getpid() == self._owner:
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int(os.pread(self._file, 128, 0).split()[1]) * self._page
        import psutil

        return int(psutil.Process().memory_info().rss)

    def __del__(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)


def resident_bytes() -> int:
    """The main memory that this process holds now."""
    return ResidentMemory()()


def peak_resident_bytes() -> int:
    """The most main memory that this process has held."""
    # Not ru_maxrss where it can be helped: it begins with the peak of the process that made this.
    with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def fallen_bytes() -> int:
    """How far the address space of this process is below its highest; 0 where nobody tells."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            told = dict(line.split(":", 1) for line in file)
        highest, now = (int(told[name].split()[0]) for name in ("VmPeak", "VmSize"))
        return (highest - now) * 1024
    except (OSError, KeyError):
        return 0


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


@functools.cache
def _mallinfo() -> Callable[[], _MallInfo] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # not glibc, or one before 2.33
        return None
    function.restype = _MallInfo
    return function


def heap_bytes() -> int | None:
    """What is allocated from the C library now, to the byte; None where it does not tell.

    Steadier than the pages of the process: what was freed is not counted, wherever it lies.
    """
    function = _mallinfo()
    if function is None:
        return None
    info = function()
    return int(info.uordblks + info.hblkhd)


def return_freed_pages() -> None:
    """Hand memory that was freed back to the system, where the C library kept it for later."""
    if sys.platform != "linux":
        return
    # Only glibc has it; others hand pages back by themselves.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
