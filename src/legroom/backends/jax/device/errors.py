"""Which errors on JAX mean that memory ran out, and what they tell."""

from __future__ import annotations

from legroom.backends import address_space
from legroom.core.errors import LegroomError
from legroom.core.units import format_bytes
from legroom.messages.explain import diagnose_exception

__all__ = ["NoRoom", "is_oom", "needed_bytes"]

# What a library of XLA's on CPUs says, whatever went wrong in it.
_YNNPACK = "YNNPACK operation failed"
_EXHAUSTED = "RESOURCE_EXHAUSTED: "


class NoRoom(MemoryError):
    """A program needs more than is free, and was not started."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"Out of memory: the step needs {format_bytes(needed_bytes)} more.")
        self.needed_bytes = needed_bytes


def is_oom(error: BaseException) -> bool:
    """Whether an exception means that device memory ran out."""
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        if isinstance(current, LegroomError):
            return False  # legroom's own errors say what they mean, whatever caused them
        if isinstance(current, MemoryError):
            return True
        # JAX's own class is a RuntimeError; where it makes a constant, it raises the other one.
        if isinstance(current, RuntimeError) or (
            isinstance(current, ValueError) and _EXHAUSTED in str(current)
        ):
            diagnosis = diagnose_exception(current)
            if diagnosis.is_oom and diagnosis.where != "disk":
                return True
            if _YNNPACK in str(current) and address_space.is_limited():
                return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False


def needed_bytes(error: BaseException) -> int | None:
    """How many bytes were asked for, where that is told."""
    if isinstance(error, NoRoom):
        return error.needed_bytes
    return diagnose_exception(error).requested_bytes
