"""The address space of this process as the memory of a CPU: its limit, and what is left of it.

A CPU's allocator has no limit of its own. But the kernel counts a process's address space and can
limit it, so that running out is an error that can be caught.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

from legroom.core.errors import BadBudgetError
from legroom.core.units import format_bytes

__all__ = ["cap", "has_room", "in_use_bytes", "is_limited", "limit_bytes", "uncounted"]

# As glibc has it: allocations of this size and more are maps of their own.
_MMAP_THRESHOLD, _LARGE = -3, 2**18
_MOST_ARENAS = -8
_FRAMEWORKS = ("tensorflow", "torch", "jax")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# The address space that does not count: what the framework took to start, and for itself later.
_base = 0


def is_limited() -> bool:
    """Whether there is a hard limit."""
    return _soft_limit() != resource.RLIM_INFINITY


def limit_bytes() -> int | None:
    """The hard limit, beyond what the framework takes for itself."""
    return _soft_limit() - _base if is_limited() else None


def in_use_bytes() -> int | None:
    """What is taken, beyond what the framework takes for itself; None without a limit."""
    return _lifted.taken() - _base if is_limited() else None


def has_room(nbytes: int) -> bool:
    """Whether so many bytes can be had now.

    Counted, not tried: a thread that reads data would find no memory meanwhile.
    """
    return not is_limited() or _lifted.taken() + nbytes <= _soft_limit()


def cap(limit: int, start: Callable[[], None]) -> None:
    """Limit it to what is taken by now, and so much more.

    Args:
        limit: How much more.
        start: Has the framework start all that it starts with a first step, which does not count.

    Raises:
        BadBudgetError: If the process may not take that much.
    """
    global _base
    start()
    _give_back_at_once()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
    _base = _taken()
    if hard != resource.RLIM_INFINITY and _base + limit > hard:
        raise BadBudgetError(
            f"This process may not take {format_bytes(limit)} more: its address space is "
            f"limited to {format_bytes(hard)} (ulimit -v)."
        )
    resource.setrlimit(resource.RLIMIT_AS, (_base + limit, hard))
    if not any(isinstance(finder, _Apart) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Apart())


class _Apart(importlib.abc.MetaPathFinder):
    """Has frameworks that are imported later not count: Keras imports TensorFlow to seed it."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a loader that loads it uncounted."""
        if fullname not in _FRAMEWORKS or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Uncounted(spec.loader)
        return spec


class _Uncounted(importlib.abc.Loader):
    """A module's own loader, uncounted."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return cast("ModuleType | None", self._loader.create_module(spec))

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does."""
        with uncounted():
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Lift the limit for what a framework does for itself, and leave out what that takes.

    A compiler that runs out of memory ends the process.
    """
    _lifted.begin()
    try:
        yield
    finally:
        _lifted.end()


class _Lifted:
    """The limit while it is lifted, which several threads may want at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = 0
        self._taken_before = 0
        self.limit: int | None = None

    def begin(self) -> None:
        """Lift it."""
        with self._lock:
            if self._times == 0:
                if not is_limited():
                    return
                self._taken_before, self.limit = _taken(), _soft_limit()
                _set_soft_limit(resource.RLIM_INFINITY)
            self._times += 1

    def end(self) -> None:
        """Put it back, higher by what was taken meanwhile."""
        global _base
        with self._lock:
            if self._times == 0:
                return
            self._times -= 1
            if self._times == 0 and self.limit is not None:
                grown = max(0, _taken() - self._taken_before)
                _base += grown
                _set_soft_limit(self.limit + grown)
                self.limit = None

    def taken(self) -> int:
        """What is taken, without what is while it is lifted."""
        return _taken() if self.limit is None else self._taken_before


_lifted = _Lifted()


def _soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0] if _lifted.limit is None else _lifted.limit


def _set_soft_limit(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > hard):
        limit = hard
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _taken() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * _PAGE


def _give_back_at_once() -> None:
    """Have large arrays that are freed leave the address space, too.

    The C library keeps what was freed for later, in pieces, and with time ever larger ones: what is
    free would not be what can be had. And it reserves 64 MiB for each new thread that asks for
    memory, those of legroom and of Keras too: they share what is there.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_MOST_ARENAS, 1)
