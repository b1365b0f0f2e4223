"""tf.data's own checkpoints of iterators: the place in a pipeline, without reading up to it.

They hold whatever the pipeline has in its buffers: a shuffle's, a cache's, batches read ahead. So
they are used only where those are small, by what the pipeline says of itself, and where there is
much to pass over otherwise. Pipelines with Python or random ops in them have no checkpoints.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["buffered_bytes", "has_shuffle", "load_iterator", "save_iterator"]

_LARGEST = 2**24  # bytes of a checkpoint
_AHEAD = 8  # batches that an automatic buffer may hold
_NAME = "iterator"


def buffered_bytes(dataset: Any) -> int | None:
    """What a pipeline may hold in its buffers; None where that can't be told."""
    total, waiting, seen = 0, [dataset], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        kind = type(part).__name__.lower()
        if "cache" in kind or "generator" in kind or "interleave" in kind or "window" in kind:
            return None
        element = _element_bytes(part)
        if "shuffle" in kind or "prefetch" in kind or "parallel" in kind:
            count = _AHEAD
            if hasattr(part, "_buffer_size"):
                with contextlib.suppress(Exception):
                    count = int(part._buffer_size)
            if element is None:
                return None
            total += element * (count if count > 0 else _AHEAD)
        waiting += part._inputs()
    return total


def has_shuffle(dataset: Any) -> bool:
    """Whether a pipeline draws an order for each of its iterators."""
    return "shuffle" in type(dataset).__name__.lower() or any(
        has_shuffle(part) for part in dataset._inputs()
    )


def _element_bytes(dataset: Any) -> int | None:
    total = 0
    for leaf in tf.nest.flatten(dataset.element_spec):
        if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None:
            return None
        # Of a batch whose size is left open, at most so many samples are thought of.
        sizes = [1024 if size is None else int(size) for size in leaf.shape]
        if sum(size is None for size in leaf.shape) > 1:
            return None
        total += int(np.prod(sizes, dtype=np.int64)) * leaf.dtype.size
    return total


def save_iterator(iterator: Any) -> dict[str, Any] | None:
    """An iterator's checkpoint, as arrays by file name; None where there is no small one."""
    if not isinstance(iterator, tf.data.Iterator):
        return None
    with tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder:
        try:
            tf.train.Checkpoint(iterator=iterator).write(str(Path(folder) / _NAME))
        except Exception:  # every kind of op has its own way of refusing
            return None
        files = sorted(Path(folder).iterdir())
        if sum(file.stat().st_size for file in files) > _LARGEST:
            return None
        return {file.name: np.frombuffer(file.read_bytes(), np.uint8) for file in files}


def load_iterator(iterator: Any, files: dict[str, Any]) -> bool:
    """Move a new iterator to where another one was; whether that went well."""
    with tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder:
        for name, content in files.items():
            (Path(folder) / Path(name).name).write_bytes(np.asarray(content, np.uint8).tobytes())
        try:
            status = tf.train.Checkpoint(iterator=iterator).read(str(Path(folder) / _NAME))
            status.assert_consumed()
        except Exception:  # the batches are passed over then, one by one
            return False
    return True
