"""Data as a training on PyTorch is given it. Loaders are not read stage by stage."""

from __future__ import annotations

import sys
from typing import Any

from legroom.core.stages import Stage

__all__ = ["is_dataset", "is_sequence", "read_pipeline", "read_sequence"]


def is_dataset(value: Any) -> bool:
    """Whether a value is a pipeline whose stages can be read: a loader's can't."""
    return False


def read_pipeline(dataset: Any) -> list[Stage]:
    """The stages of a pipeline: there are none."""
    return []


def is_sequence(value: Any) -> bool:
    """Whether a value is a `PyDataset`, where the script uses Keras."""
    if "keras" not in sys.modules:
        return False
    from legroom.backends.keras.input import sequences

    return sequences.is_sequence(value)


def read_sequence(data: Any) -> list[Stage]:
    """The stages of a `PyDataset`; without the batch that tf.data makes ahead."""
    from legroom.backends.keras.input import sequences

    return [stage for stage in sequences.read_sequence(data) if stage.kind != "prefetch"]
