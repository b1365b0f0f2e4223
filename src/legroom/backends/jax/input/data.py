"""Data as a training on JAX is given it."""

from __future__ import annotations

from typing import Any

from legroom.backends.keras.input.sequences import is_sequence
from legroom.backends.keras.input.sequences import read_sequence as read_by_keras
from legroom.core.stages import Stage

__all__ = ["is_dataset", "is_sequence", "read_pipeline", "read_sequence"]


def is_dataset(value: Any) -> bool:
    """Whether a value is a pipeline whose stages can be read: JAX has none."""
    return False


def read_pipeline(dataset: Any) -> list[Stage]:
    """The stages of a pipeline: there are none."""
    return []


def read_sequence(data: Any) -> list[Stage]:
    """The stages of a `PyDataset`; without the batch that tf.data makes ahead."""
    return [stage for stage in read_by_keras(data) if stage.kind != "prefetch"]
