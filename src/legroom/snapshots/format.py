"""The file a snapshot is: a header in JSON, arrays behind it, and checksums over both.

    magic · format version · length and checksum of the header · header · arrays

The header says for each array its type, shape, place and checksum. Everything is checked when a
file is read, before anything of it is used, and nothing in it is ever executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from legroom.core.errors import SnapshotError
from legroom.core.files import atomic_file

__all__ = ["FORMAT", "Content", "read_file", "write_file"]

FORMAT = 1
_MAGIC = b"legroom snapshot\n"
_FIXED = struct.Struct("<IQI")  # format, bytes of the header, checksum of the header
_ALIGNED = 64
_LONGEST_HEADER = 2**30
_LARGEST_WRITE = 2**24  # between two of these a full disk is noticed, and others get their turn


@dataclasses.dataclass
class Content:
    """What is in a file.

    Attributes:
        values: Plain JSON.
        arrays: The arrays that the values refer to.
    """

    values: dict[str, Any]
    arrays: list[Any]


def write_file(path: Path, values: dict[str, Any], arrays: Sequence[Any]) -> int:
    """Write a file, wholly or not at all.

    Returns:
        Its size in bytes.

    Raises:
        OSError: If it can't be written.
    """
    table, offset = [], 0
    packed = [np.ascontiguousarray(array) for array in arrays]
    for array, given in zip(packed, arrays, strict=True):
        table.append(
            {
                "dtype": array.dtype.name,
                "shape": list(given.shape),
                "offset": offset,
                "bytes": array.nbytes,
                "crc32": zlib.crc32(_bytes(array)),
            }
        )
        offset += _aligned(array.nbytes)
    header = json.dumps({"values": values, "arrays": table}).encode()
    with atomic_file(path) as file:
        file.write(_MAGIC)
        file.write(_FIXED.pack(FORMAT, len(header), zlib.crc32(header)))
        file.write(header)
        _pad(file)
        for array in packed:
            view = _bytes(array)
            for start in range(0, len(view), _LARGEST_WRITE):
                file.write(view[start : start + _LARGEST_WRITE])
            _pad(file)
        return file.tell()


def read_file(path: Path) -> Content:
    """Read a file, and trust nothing in it before it was checked.

    Raises:
        SnapshotError: If it is no snapshot, one of another format, cut short or damaged.
    """
    try:
        with open(path, "rb") as file:
            return _read(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise SnapshotError(f"The snapshot {path} can't be read: {error}.") from error
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise _damaged(path, f"its header makes no sense ({error})") from error


def _read(path: Path, file: BinaryIO, size: int) -> Content:
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise _damaged(path, "it does not begin as one")
    format_, length, checksum = _FIXED.unpack(file.read(_FIXED.size))
    if format_ != FORMAT:
        raise SnapshotError(
            f"The snapshot {path} is of format {format_}, which another version of legroom wrote; "
            f"this one reads format {FORMAT}. Use that version, or --fresh to start again."
        )
    if length > min(size, _LONGEST_HEADER):
        raise _damaged(path, "it is cut short")
    text = file.read(length)
    if len(text) < length or zlib.crc32(text) != checksum:
        raise _damaged(path, "the checksum of its header is wrong")
    header = json.loads(text)
    start = _aligned(file.tell())
    arrays = []
    for entry in header["arrays"]:
        count = int(entry["bytes"])
        dtype = np.dtype(_dtype(entry["dtype"]))
        if count < 0 or start + entry["offset"] + count > size:
            raise _damaged(path, "it is cut short")
        raw: Any = np.empty(count, np.uint8)
        file.seek(start + entry["offset"])
        if file.readinto(memoryview(raw)) != count:  # type: ignore[attr-defined]
            raise _damaged(path, "it is cut short")
        if zlib.crc32(memoryview(raw)) != entry["crc32"]:
            raise _damaged(path, "the checksum of an array is wrong")
        arrays.append(raw.view(dtype).reshape(entry["shape"]))
    return Content(header["values"], arrays)


def _dtype(name: str) -> Any:
    """A type by its name; the small floats of machine learning come with ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return getattr(ml_dtypes, name)


def _bytes(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNED) * _ALIGNED


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (_aligned(file.tell()) - file.tell()))


def _damaged(path: Path, what: str) -> SnapshotError:
    return SnapshotError(f"The snapshot {path} is damaged: {what}.")
