"""The memory TensorFlow trains in: its limit, what is in use, the peak."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from legroom.backends import patches
from legroom.backends.parts import CONTEXT
from legroom.backends.tensorflow.device import caps
from legroom.core.errors import BadBudgetError
from legroom.core.units import format_bytes
from legroom.machine.budget import DeviceReading, judge

__all__ = [
    "allocator_limit",
    "card_number",
    "device_name",
    "has_limit",
    "has_started",
    "in_use_bytes",
    "is_certain",
    "limit_bytes",
    "peak_bytes",
    "read_device",
    "reset_peak",
    "set_limit",
]

_limit: int | None = None


def device_name() -> str:
    """The device that training runs on: the one of `with tf.device(…):`, the first GPU, or the CPU.

    All CPU devices take from one and the same memory, so there is only one of them here.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return "CPU:0"
    chosen = re.search(r"device:(CPU|GPU):(\d+)$", context.context().device_name or "")
    if chosen is None or (chosen[1] == "GPU" and int(chosen[2]) >= len(gpus)):
        return "GPU:0"
    return "CPU:0" if chosen[1] == "CPU" else f"GPU:{chosen[2]}"


def has_started() -> bool:
    """Whether TensorFlow has created its devices, and with them their allocators."""
    current = context.context_safe()
    return current is not None and current._context_handle is not None


def has_limit() -> bool:
    """Whether the training device has a hard limit; asked before every step, so no size is read."""
    return _limit is not None or caps.capped_bytes() is not None or device_name() != "CPU:0"


def limit_bytes() -> int | None:
    """The hard limit of the training device, where there is one that TensorFlow knows of."""
    return judge(read_device()).limit_bytes


def is_certain() -> bool:
    """Whether the limit can be relied on. Where not, a whole batch is tried before it is cut."""
    return judge(read_device()).certain


def read_device() -> DeviceReading:
    """All that can be read of the training device's memory.

    Not yet verified on a GPU, so nothing is decided here: `legroom.machine.budget` does.
    """
    name = device_name()
    if name == "CPU:0":
        return DeviceReading(name, cap_bytes=caps.capped_bytes())
    # Whatever can't be read is unknown, and no reason to stop a training.
    card, asked = None, True
    with contextlib.suppress(Exception):
        card = _card()
    with contextlib.suppress(Exception):
        asked = bool(context.context().config.gpu_options.allow_growth)
    return DeviceReading(
        name,
        allocator_bytes=allocator_limit(name),
        grows=caps.pool_grows(asked),
        hard=caps.keeps_limit(),
        in_use_bytes=in_use_bytes(),
        peak_bytes=peak_bytes(),
        cap_bytes=_limit,
        card_bytes=None if card is None else card.total_bytes,
        free_bytes=None if card is None else card.free_bytes,
    )


def allocator_limit(name: str) -> int | None:
    """What a device's allocator may hand out; None where TensorFlow does not tell.

    There is no public call for it, but the device's own attributes carry it. For a CPU that is a
    placeholder.
    """
    # Names of TensorFlow's own: another version may not have them, and any error means "unknown".
    with contextlib.suppress(Exception):
        from tensorflow.python import pywrap_tfe
        from tensorflow.python.client import pywrap_tf_session as listed

        current = context.context()
        current.ensure_initialized()
        devices = pywrap_tfe.TFE_ContextListDevices(current._handle)
        try:
            for number in range(listed.TF_DeviceListCount(devices)):
                if listed.TF_DeviceListName(devices, number).endswith(f"/device:{name}"):
                    return int(listed.TF_DeviceListMemoryBytes(devices, number)) or None
        finally:
            listed.TF_DeleteDeviceList(devices)
    return None


def card_number() -> int | None:
    """Which of the cards that CUDA shows the training device is on; None for a CPU."""
    from legroom.machine.gpu import card_of

    kind, _, number = device_name().partition(":")
    visible = tf.config.get_visible_devices(kind)
    parts = [len(tf.config.get_logical_device_configuration(one) or (0,)) for one in visible]
    index = None if kind == "CPU" else card_of(int(number), parts)
    return None if index is None else int(visible[index].name.rpartition(":")[2])


def _card() -> Any:
    """The training device's card, as the driver sees it; None where it is not found."""
    from legroom.machine.gpu import list_gpus

    number, cards = card_number(), list_gpus()
    if number is None or number >= len(cards):
        return None
    # The driver may number unequal cards in another order than CUDA does.
    physical = tf.config.list_physical_devices("GPU")[number]
    name = tf.config.experimental.get_device_details(physical).get("device_name")
    return cards[number] if name in (None, cards[number].name) else None


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
        BadBudgetError: If TensorFlow has already taken memory: its pool can't be changed any more.
    """
    global _limit
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        try:
            for gpu in gpus:
                tf.config.set_logical_device_configuration(
                    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)]
                )
        except (RuntimeError, ValueError) as error:
            raise _too_late(limit) from error
        _limit = limit
        _let_grow(gpus)
        return
    # oneDNN's switch is read when the library is loaded, so an import is already too late for it.
    onednn = os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0" and "tensorflow" in sys.modules
    if onednn or has_started():
        raise _too_late(limit)
    os.environ.update(caps.cap_environment(limit))


def _let_grow(capped: Sequence[Any]) -> None:
    """Have scripts that turn memory growth on run on a capped device, too.

    TensorFlow refuses that for a device with a limit, but only in this call: the environment asks
    for the same thing, and is read when the allocator is made.
    """
    current = context.context()
    real = current.set_memory_growth

    def set_memory_growth(device: Any, enable: bool) -> None:
        if device not in capped:
            real(device, enable)
        elif not has_started():
            os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true" if enable else "false"

    patches.set_on(current, CONTEXT, "set_memory_growth", set_memory_growth)


def _too_late(limit: int) -> BadBudgetError:
    return BadBudgetError(
        f"A cap of {format_bytes(limit)} comes too late: TensorFlow has already set up its memory, "
        "and can't be capped any more. Call legroom.limit(…) before TensorFlow is imported, or "
        f"start the script with: legroom run --memory {limit // 2**20}MiB script.py"
    )


def _stat(name: str) -> int | None:
    try:
        return int(tf.config.experimental.get_memory_info(device_name())[name])
    except (ValueError, tf.errors.InvalidArgumentError):
        return None
