"""Which TensorFlow errors mean that memory ran out, and what they tell.

The reading of messages is that of `legroom explain`; what is here is which exceptions are worth
reading: a user's own exception that speaks of memory is the user's.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from legroom.core.errors import LegroomError, OutOfMemoryError
from legroom.messages.explain import diagnose_exception

__all__ = ["SECONDS", "OomDetails", "describe", "insist", "is_oom"]

# How long TensorFlow waits for memory to be given back before it says that there is none.
SECONDS = 10.0

# XLA and cuDNN report running out of memory as errors of other kinds.
_KINDS = (tf.errors.OpError, RuntimeError, MemoryError)
# What TensorFlow says, as a ValueError, where a step that is traced finds no room for a constant.
_WHILE_TRACED = "Unable to evaluate a constant node"
# Seconds between tries of what must not fail.
_PATIENCE = (0.0, 1.0, 5.0, 20.0)


@dataclasses.dataclass(frozen=True)
class OomDetails:
    """What an out-of-memory error tells.

    Attributes:
        needed_bytes: The size of the allocation that failed.
        op: The path of the op that asked for it.
        place: The layer, as far as the path tells, or else the op.
    """

    needed_bytes: int | None = None
    op: str | None = None
    place: str | None = None


def is_oom(error: BaseException) -> bool:
    """Whether an exception means that device memory ran out."""
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        if isinstance(current, LegroomError):
            return False  # what is ours is said on purpose, whatever was behind it
        traced = isinstance(current, ValueError) and _WHILE_TRACED in str(current)
        if traced or isinstance(current, _KINDS):
            diagnosis = diagnose_exception(error)
            return bool(diagnosis.is_oom) and diagnosis.where != "disk"
        seen.add(id(current))
        current = current.__cause__
    return False


def describe(error: BaseException) -> OomDetails:
    """Read an out-of-memory error."""
    diagnosis = diagnose_exception(error)
    return OomDetails(diagnosis.requested_bytes, diagnosis.op, diagnosis.layer or diagnosis.op)


def insist(call: Callable[[], Any], lost: str) -> Any:
    """Run what must not fail: when memory runs out, wait for some and try again.

    Args:
        call: Has done nothing when it raises.
        lost: What is lost if it can't be done, and what to do.

    Raises:
        LegroomError: If it can't be done in the end; `OutOfMemoryError` where that is for want of
            memory. No error that would have anybody try the step again.
    """
    for seconds in (*_PATIENCE, 0):
        try:
            return call()
        except Exception as error:
            if not is_oom(error):
                raise LegroomError(lost) from error
        # Past the except block, so that what the error's traceback holds is free.
        gc.collect()
        time.sleep(seconds)
    raise OutOfMemoryError(lost)
