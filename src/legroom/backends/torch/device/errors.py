"""Which PyTorch errors mean that memory ran out, and what they tell."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from legroom.backends import address_space
from legroom.backends.careful import OWN_CODE
from legroom.core.errors import LegroomError
from legroom.messages.explain import diagnose_exception

__all__ = ["describe", "is_oom"]

# PyTorch's own class is a RuntimeError; a CPU's allocator, cuBLAS and cuDNN raise plain ones.
_KINDS = (RuntimeError, MemoryError)
# What oneDNN says, on a CPU, where it finds no memory for a kernel; and where it is something else.
_ONEDNN = ("could not create a primitive", "could not create a memory", "could not execute a primi")


def is_oom(error: BaseException) -> bool:
    """Whether an exception means that device memory ran out."""
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        if isinstance(current, LegroomError):
            return False  # what is ours is said on purpose, whatever was behind it
        if isinstance(current, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(current, _KINDS):
            diagnosis = diagnose_exception(current)
            if diagnosis.is_oom and diagnosis.where != "disk":
                return True
            if str(current).startswith(_ONEDNN) and address_space.is_limited():
                return True
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return False


def describe(error: BaseException, names: dict[int, str]) -> tuple[str | None, int | None]:
    """Where it ran out, and how many bytes were asked for.

    Args:
        error: The error, with its traceback.
        names: What modules are called, by their ids.
    """
    place: str | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        # Not those that go on running: looking at a frame's names keeps all of them in it, and with
        # them the error that is handled there, and with that the memory of the step.
        ours = frame.f_code.co_filename.startswith(OWN_CODE)
        owner: Any = None if ours else frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            # A layer of Keras has a name; a module has one in the module that holds it.
            place = names.get(id(owner)) or getattr(owner, "name", None) or type(owner).__name__
        elif isinstance(owner, torch.optim.Optimizer):
            place = f"{type(owner).__name__}.step"
        trace = trace.tb_next
    return place, diagnose_exception(error).requested_bytes
