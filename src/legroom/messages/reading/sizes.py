"""Sizes, shapes, dtypes and devices as the frameworks write them.

Every function here takes text that came out of a log and returns ``None`` for what it can't read:
what a message does not say is not known, and is never made up.
"""

from __future__ import annotations

import re

__all__ = [
    "SIZE",
    "SIZED",
    "device_of_allocator",
    "device_of_path",
    "dtype_bytes",
    "dtype_name",
    "parse_bytes",
    "parse_shape",
    "tensor_bytes",
]

# "2.43MiB", "8.41G", "184. MiB", "12.50 MiB", "0 bytes", "26,184,840kB", "587661312". Bounded, so
# that a line of ten million digits costs no more than any other line.
SIZE = r"[0-9][0-9,]{0,25}(?:\.[0-9]{0,9})?(?:[ ]?(?:[KMGTPEkmgtpe]i?[Bb]?|[Bb]ytes|[Bb])\b)?"

# The same with its unit, for writers that always print one: without it the number was cut off.
SIZED = r"[0-9][0-9,]{0,25}(?:\.[0-9]{0,9})?[ ]?(?:[KMGTPEkmgtpe]i?[Bb]?|[Bb]ytes|[Bb])\b"

_SIZE = re.compile(r"([0-9][0-9,]{0,25}(?:\.[0-9]{0,9})?)[ ]?([A-Za-z]{0,5})")
# "1,24 GiB", as Python's and C's locales of half the world print it; thousands come in threes.
_DECIMAL_COMMA = re.compile(r"[0-9]{1,12},(?:[0-9]{1,2}|[0-9]{4,9})")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_LARGEST = 2**63  # no allocator can be asked for more

# What TensorFlow, NumPy, PyTorch and XLA call the same type: its name here and its bytes.
_DTYPES: dict[str, tuple[str, int | None]] = {
    "bfloat16": ("bfloat16", 2), "bf16": ("bfloat16", 2),
    "half": ("float16", 2), "float16": ("float16", 2), "f16": ("float16", 2),
    "float": ("float32", 4), "float32": ("float32", 4), "f32": ("float32", 4),
    "double": ("float64", 8), "float64": ("float64", 8), "f64": ("float64", 8),
    "float128": ("float128", 16), "longdouble": ("float128", 16),
    "int4": ("int4", None), "s4": ("int4", None), "uint4": ("uint4", None), "u4": ("uint4", None),
    "int8": ("int8", 1), "s8": ("int8", 1), "qint8": ("int8", 1),
    "uint8": ("uint8", 1), "u8": ("uint8", 1), "quint8": ("uint8", 1),
    "int16": ("int16", 2), "s16": ("int16", 2),
    "uint16": ("uint16", 2), "u16": ("uint16", 2),
    "int32": ("int32", 4), "s32": ("int32", 4), "int": ("int32", 4),
    "uint32": ("uint32", 4), "u32": ("uint32", 4),
    "int64": ("int64", 8), "s64": ("int64", 8), "long": ("int64", 8),
    "uint64": ("uint64", 8), "u64": ("uint64", 8),
    "bool": ("bool", 1), "pred": ("bool", 1),
    "complex64": ("complex64", 8), "c64": ("complex64", 8),
    "complex128": ("complex128", 16), "c128": ("complex128", 16),
    "f8e4m3fn": ("float8_e4m3fn", 1), "float8_e4m3fn": ("float8_e4m3fn", 1),
    "f8e5m2": ("float8_e5m2", 1), "float8_e5m2": ("float8_e5m2", 1),
    "string": ("string", None), "variant": ("variant", None), "resource": ("resource", None),
    "object": ("object", None),
}  # fmt: skip

_DEVICE = re.compile(r"(?:^|[/:])(?:device:)?([A-Za-z]\w{1,20}):([0-9]{1,4})$")
_HOST_DEVICES = ("CPU", "HOST")
_DEVICE_POOL = re.compile(
    r"(?:xla_)?([a-z]{2,8})_([0-9]{1,4})_bfc\b|([a-z]{2,8})_async_([0-9]{1,4})$"
)
_HOST_POOL = re.compile(r"(?:.*cpu.*|.*_host(?:_.*)?)$")


def parse_bytes(text: str | None, *, binary: bool = False) -> int | None:
    """Read a size that a framework printed.

    Args:
        text: ``"2.43MiB"``, ``"8.41G"``, ``"184. MiB"``, ``"0 bytes"``, ``"587661312"``.
        binary: Whether this writer's ``kB`` and ``GB`` mean 1024s, as the kernel's do.
    """
    match = _SIZE.match(text.strip()) if text else None
    if match is None:
        return None
    unit = match.group(2).lower()
    if unit in ("b", "byte", "bytes"):
        unit = ""
    power = _POWERS.get(unit[:1])
    if power is None or unit[1:] not in ("", "i", "ib", "b") or unit == "e":
        return None
    # A lone "G" is how XLA and the CUDA driver write GiB.
    base = 1000 if unit[1:] == "b" and not binary else 1024
    digits = match.group(1)
    if _DECIMAL_COMMA.fullmatch(digits):
        digits = digits.replace(",", ".")
    digits = digits.replace(",", "")
    if not unit and "." in digits and match.end() == match.end(1):
        return None  # nobody prints half bytes: the unit is missing
    count = int(digits) * base**power if digits.isdecimal() else round(float(digits) * base**power)
    return count if count < _LARGEST else None


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Read ``"64,348,298,32"`` or ``"(64, 26, 3,)"``. An unknown dimension makes it unknown."""
    if text is None:
        return None
    parts = [part.strip() for part in text.strip("()[] ").split(",")]
    if parts and not parts[-1]:
        parts.pop()  # a tuple of one, or no dimension at all
    if len(parts) > 32 or not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    if any(len(part) > 19 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def dtype_name(text: str | None) -> str | None:
    """The common name of a type: ``"float"``, ``"f32"`` and ``"torch.float32"`` are one."""
    if not text:
        return None
    name = text.removeprefix("torch.").removeprefix("DT_").lower()
    return _DTYPES[name][0] if name in _DTYPES else None


def dtype_bytes(name: str | None) -> int | None:
    """The bytes of one element, by common name."""
    return _DTYPES[name][1] if name in _DTYPES else None


def tensor_bytes(shape: tuple[int, ...] | None, dtype: str | None) -> int | None:
    """The bytes of a whole tensor, where shape and type are both known."""
    count = dtype_bytes(dtype)
    if shape is None or count is None:
        return None
    for length in shape:
        count *= length
        if count >= _LARGEST:
            return None
    return count


def device_of_path(path: str | None) -> tuple[str | None, str | None]:
    """Device and place in ``/job:localhost/replica:0/task:0/device:GPU:1``.

    Returns:
        The device as ``"GPU:1"`` and ``"device"`` or ``"host"``; two times None if it can't be
        read.
    """
    match = _DEVICE.search(path.rstrip(".,;:)]}'\"")) if path else None
    if match is None:
        return None, None
    kind = match.group(1).upper().removeprefix("XLA_")
    return f"{kind}:{int(match.group(2))}", "host" if kind in _HOST_DEVICES else "device"


def device_of_allocator(name: str | None) -> tuple[str | None, str | None]:
    """Device and place by an allocator's name: ``GPU_0_bfc``, ``gpu_async_1``, ``mklcpu``."""
    if not name:
        return None, None
    lowered = name.lower()
    if _HOST_POOL.match(lowered):
        return "CPU:0", "host"
    match = _DEVICE_POOL.match(lowered)
    if match is None:
        return None, None
    kind, ordinal = match.group(1) or match.group(3), match.group(2) or match.group(4)
    return f"{kind.upper()}:{int(ordinal)}", "device"
