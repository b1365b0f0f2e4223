"""Which TensorFlow errors mean that memory ran out, and what they tell."""

from __future__ import annotations

import dataclasses
import re

import tensorflow as tf

from legroom.messages.ops import layer_of_op, plain_op

__all__ = ["OomDetails", "describe", "is_oom"]

# Other errors under which the same thing arrives, by what their message says.
_SIGNS = (
    "OOM when allocating",
    "Out of memory",
    "out of memory",
    "failed to allocate memory",
    "Dst tensor is not initialized",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "RESOURCE_EXHAUSTED: Out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# RESOURCE_EXHAUSTED is also said of other things than memory.
_NOT_MEMORY = ("No space left on device", "message larger than max", "file descriptors")
_SHAPE = re.compile(r"allocating tensor with shape\[([\d,]*)\] and type (\w+)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_WANTED = re.compile(r"trying to allocate ([\d.]+)\s*(\w+)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TYPE_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "int32": 4, "int64": 8, "bool": 1}


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
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = str(current)
        if isinstance(current, tf.errors.ResourceExhaustedError):
            return not any(sign in text for sign in _NOT_MEMORY)
        if isinstance(current, (tf.errors.OpError, RuntimeError, MemoryError)) and (
            any(sign in text for sign in _SIGNS)
        ):
            return True
        current = current.__cause__
    return False


def describe(error: BaseException) -> OomDetails:
    """Read an out-of-memory error."""
    text = str(error)
    needed: int | None = None
    if shape := _SHAPE.search(text):
        needed = _TYPE_BYTES.get(shape.group(2), 4)
        for length in filter(None, shape.group(1).split(",")):
            needed *= int(length)
    elif wanted := _WANTED.search(text):
        unit = _UNITS.get(wanted.group(2))
        needed = int(float(wanted.group(1)) * unit) if unit else None
    op = plain_op(node.group(0)) if (node := _NODE.search(text)) else None
    return OomDetails(needed, op, (layer_of_op(op) or op) if op else None)
