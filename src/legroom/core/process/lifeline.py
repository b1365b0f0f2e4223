"""A child process that never outlives its parent, where the kernel can see to that: on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

__all__ = ["end_with", "ends_with_this"]

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process killed when its parent dies, even by SIGKILL.

    Args:
        parent: The process that started this one.
    """
    _prepare(parent)()


def ends_with_this() -> Callable[[], None]:
    """What a child has to call between fork and exec, so that it is killed when this process dies.

    For a process that has one thread: what runs there may wait for no other one.
    """
    return _prepare(os.getpid())


def _prepare(parent: int) -> Callable[[], None]:
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel knew what to do then
            os._exit(1)

    return prepare
