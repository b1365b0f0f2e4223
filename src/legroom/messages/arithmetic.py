"""Why a tensor is as large as it is: its product, and what its axes most likely are."""

from __future__ import annotations

from legroom.core.units import format_bytes
from legroom.messages.reading.sizes import dtype_bytes, tensor_bytes

__all__ = ["axes", "product"]


def product(shape: tuple[int, ...], dtype: str) -> str | None:
    """The arithmetic of a tensor: ``64 × 348 × 298 × 32 × 4 B = 850 MB``."""
    size, whole = dtype_bytes(dtype), tensor_bytes(shape, dtype)
    if size is None or whole is None:
        return None
    return " × ".join([*map(str, shape), f"{size} B"]) + f" = {format_bytes(whole)}"


def axes(shape: tuple[int, ...], data_format: str | None = None) -> tuple[str, ...] | None:
    """What the axes of a tensor most likely are, or None where its shape does not show it.

    Args:
        shape: The shape.
        data_format: ``NHWC`` or ``NCHW``, where the node says so.
    """
    if len(shape) == 4:
        first, second, third, last = shape
        if data_format is None and first == second <= 11 and third >= 3 and last >= 8:
            return ("kernel", "kernel", "channels in", "filters")
        # What the node says may be older than the tensor: TensorFlow turns layouts around before
        # it runs them. A square picture shows which one it is.
        if second == third and third != last:
            channels_last = True
        elif third == last and second != third:
            channels_last = False
        elif data_format in ("NHWC", "NCHW"):
            channels_last = data_format == "NHWC"
        elif second != third and abs(second - third) * 4 <= max(second, third) and last % 8 == 0:
            channels_last = True
        else:
            return None
        if channels_last:
            return ("batch", "height", "width", "channels")
        return ("batch", "channels", "height", "width")
    return None
