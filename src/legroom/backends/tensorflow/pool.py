"""The memory TensorFlow trains in: its limit, what is in use, the peak."""

from __future__ import annotations

import contextlib
import os
import sys

import tensorflow as tf

from legroom.backends.tensorflow import caps
from legroom.core.errors import BadBudget
from legroom.core.units import format_bytes

__all__ = [
    "device_name",
    "has_limit",
    "in_use_bytes",
    "limit_bytes",
    "peak_bytes",
    "reset_peak",
    "set_limit",
]

_limit: int | None = None


def device_name() -> str:
    """The device that training runs on: the first GPU, or the CPU."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def has_limit() -> bool:
    """Whether the training device has a hard limit; asked before every step, so no size is read."""
    return _limit is not None or caps.capped_bytes() is not None or device_name() != "CPU:0"


def limit_bytes() -> int | None:
    """The hard limit of the training device, where there is one that TensorFlow knows of."""
    if _limit is not None:
        return _limit
    if device_name() == "CPU:0":
        return caps.capped_bytes()
    # Not yet verified on a GPU: TensorFlow has no public call for the size of its own pool, so
    # the card's free memory and what TensorFlow holds of it stand for it.
    from legroom.machine.gpu import list_gpus

    gpus = list_gpus()
    if not gpus:
        return None
    in_use = in_use_bytes() or 0
    return max(gpus[0].free_bytes + in_use, in_use)


def in_use_bytes() -> int | None:
    """Bytes in use on the training device, where its allocator keeps count."""
    return _stat("current")


def peak_bytes() -> int | None:
    """The most bytes in use since the last reset, where the allocator keeps count."""
    return _stat("peak")


def reset_peak() -> None:
    """Start counting the peak anew."""
    # An allocator without statistics raises: peaks are then unknown, not wrong.
    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
        tf.config.experimental.reset_memory_stats(device_name())


def set_limit(limit: int) -> None:
    """Cap the training device of this process.

    Raises:
        BadBudget: If TensorFlow has already taken memory: its pool can't be changed any more.
    """
    global _limit
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        try:
            tf.config.set_logical_device_configuration(
                gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)]
            )
        except (RuntimeError, ValueError) as error:
            raise _too_late(limit) from error
        _limit = limit
        return
    if _started():
        raise _too_late(limit)
    os.environ.update(caps.cap_environment(limit))


def _started() -> bool:
    """Whether TensorFlow has created its devices, and with them the allocator."""
    from tensorflow.python.eager import context

    current = context.context_safe()
    # oneDNN's switch is read when the library is loaded, so an import is already too late for it.
    onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0" and "tensorflow" in sys.modules
    return onednn or (current is not None and current._context_handle is not None)


def _too_late(limit: int) -> BadBudget:
    return BadBudget(
        f"A cap of {format_bytes(limit)} comes too late: TensorFlow has already set up its memory, "
        "and can't be capped any more. Call legroom.limit(…) before TensorFlow is imported, or "
        f"start the script with: legroom run --memory {limit // 2**20}MiB script.py"
    )


def _stat(name: str) -> int | None:
    try:
        return int(tf.config.experimental.get_memory_info(device_name())[name])
    except (ValueError, tf.errors.InvalidArgumentError):
        return None
