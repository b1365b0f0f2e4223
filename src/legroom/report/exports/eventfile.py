"""Files that TensorBoard reads, written without TensorFlow.

A file is a row of records: length, checksum, a protocol buffer, checksum. Of the buffers' fields
only those are written that TensorBoard needs for scalars, texts and images (tensorboard/compat/
proto/event.proto and summary.proto); they have been the same since its first version.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["EventFile", "make_png"]

_STRING = 7  # DataType.DT_STRING


class EventFile:
    """An event file of TensorBoard's.

    Args:
        folder: Where; it is made. TensorBoard calls the run by its name.

    Raises:
        OSError: If it can't be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.legroom"
        )
        self.path = path / name
        self._file = open(self.path, "ab")  # noqa: SIM115
        self._lock = threading.Lock()
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int, at: float | None = None) -> None:
        """Write a number."""
        self._summary(_bytes(1, tag.encode()) + _float(2, value), step, at)

    def text(self, tag: str, text: str, step: int, at: float | None = None) -> None:
        """Write a text; TensorBoard reads it as Markdown."""
        tensor = _varint(1, _STRING) + _bytes(2, b"") + _bytes(8, text.encode())
        metadata = _bytes(1, _bytes(1, b"text"))
        value = _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, metadata)
        self._summary(value, step, at)

    def image(self, tag: str, png: bytes, width: int, height: int, step: int) -> None:
        """Write a picture."""
        picture = _varint(1, height) + _varint(2, width) + _varint(3, 3) + _bytes(4, png)
        self._summary(_bytes(1, tag.encode()) + _bytes(4, picture), step, None)

    def flush(self) -> None:
        """Have all on disk that was written."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _summary(self, value: bytes, step: int, at: float | None) -> None:
        moment = time.time() if at is None else at
        self._write(_double(1, moment) + _varint(2, step) + _bytes(5, _bytes(1, value)))

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        record = length + _masked(length) + data + _masked(data)
        with self._lock:
            if not self._file.closed:
                self._file.write(record)


def make_png(rows: Sequence[Sequence[tuple[int, int, int]]]) -> bytes:
    """A picture of rows of red, green and blue, as PNG."""
    height, width = len(rows), len(rows[0])
    raw = b"".join(b"\0" + bytes(part for pixel in row for part in pixel) for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


def _number(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _double(field: int, value: float) -> bytes:
    return _number(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, data: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(data)) + data


def _float(field: int, value: float) -> bytes:
    return _number(field << 3 | 5) + struct.pack("<f", value)


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC32C = _table()


def _masked(data: bytes) -> bytes:
    """CRC-32C, turned about as these files want it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
