"""Reads a `PyDataset`: what makes batches, and where they wait."""

from __future__ import annotations

from typing import Any

import keras
from keras import tree

from legroom.core.stages import Stage

__all__ = ["is_sequence", "read_sequence"]


def is_sequence(value: Any) -> bool:
    """Whether a value is a `PyDataset`."""
    return isinstance(value, keras.utils.PyDataset)


def read_sequence(data: Any) -> list[Stage]:
    """The stages of a `PyDataset`: what makes batches, and the queue they wait in."""
    batch = data[0]
    leaves = [leaf for leaf in tree.flatten(batch) if leaf is not None]
    size = sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
    dtypes = tuple(str(getattr(leaf, "dtype", "")) for leaf in leaves)
    workers = int(getattr(data, "workers", 1) or 1)
    # With one worker Keras makes each batch when it is asked for.
    waiting = int(getattr(data, "max_queue_size", 10)) if workers > 1 else 0
    return [
        Stage("generator", size, 0, dtypes=dtypes),
        Stage("queue", size, waiting, dtypes=dtypes),
        Stage("prefetch", size, 1, dtypes=dtypes),
    ]
