"""What callbacks remember, to a snapshot and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from legroom.snapshots import attributes

__all__ = ["before_training", "capture_callbacks", "restore_callbacks"]


def capture_callbacks(callbacks: Sequence[Any], arrays: list[Any]) -> list[dict[str, Any]]:
    """Take what callbacks remember."""
    taken = []
    for callback in callbacks:
        entry: dict[str, Any] = {
            "kind": type(callback).__name__,
            "attributes": attributes.capture(callback, arrays),
        }
        if _compares(callback):
            entry["compares"] = True
        if (size := _log_size(callback)) is not None:
            entry["log_size"] = size
        taken.append(entry)
    return taken


def before_training(callbacks: Sequence[Any], taken: Sequence[dict[str, Any]]) -> None:
    """Keep callbacks from undoing what they did before: `CSVLogger` begins its file anew."""
    for callback, entry in zip(callbacks, taken, strict=False):
        if "log_size" in entry and _log_size(callback) is not None:
            if os.path.getsize(callback.filename) > entry["log_size"]:
                os.truncate(callback.filename, entry["log_size"])  # rows that will come again
            callback.append = True


def restore_callbacks(
    callbacks: Sequence[Any],
    taken: Sequence[dict[str, Any]],
    arrays: list[Any],
) -> None:
    """Put back what callbacks remembered; to be called when they have begun the training."""
    for callback, entry in zip(callbacks, taken, strict=False):
        if type(callback).__name__ != entry["kind"]:
            continue
        if entry.get("compares") and not _compares(callback):
            # Keras chooses how to compare when the first epoch ends, and turns the sign of
            # `min_delta` then: if that were left to it, it would turn it a second time.
            callback._set_monitor_op()
        attributes.restore(callback, entry["attributes"], arrays)
        if "log_size" in entry:
            callback.append_header = entry["log_size"] == 0


def _compares(callback: Any) -> bool:
    """Whether a callback that watches a metric has chosen how to compare its values."""
    return (
        hasattr(callback, "_set_monitor_op") and getattr(callback, "monitor_op", None) is not None
    )


def _log_size(callback: Any) -> int | None:
    """The size of a `CSVLogger`'s file."""
    if type(callback).__name__ != "CSVLogger":
        return None
    try:
        return os.path.getsize(callback.filename)
    except (OSError, AttributeError):
        return None
