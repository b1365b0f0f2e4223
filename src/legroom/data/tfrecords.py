"""TFRecord files as a source: where each record lies, and chunks of them.

A record is its length (8 bytes, and 4 of a checksum), its bytes, and 4 more of a checksum. So the
places of all records are found without reading them. The checksums are not compared.
"""

from __future__ import annotations

import concurrent.futures
import os
import struct
from typing import Any

import numpy as np

from legroom.data.files import read_at
from legroom.data.source import Leaf, Rows

__all__ = ["RecordFiles", "record_lengths"]

_HEAD, _TAIL = 12, 4
_READERS = 8


class RecordFiles:
    """The records of some TFRecord files, each one as the bytes it is.

    Args:
        paths: The files.
        chunk_bytes: What a chunk should take.
    """

    structure = 0

    def __init__(self, paths: list[str], chunk_bytes: int) -> None:
        self._paths = paths
        with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
            lengths = list(readers.map(record_lengths, paths))
        self._chunks: list[tuple[int, int, Any]] = []  # file, place in it, lengths of the records
        largest = 0
        for number, of_file in enumerate(lengths):
            spans = of_file + (_HEAD + _TAIL)
            places = np.concatenate([[0], np.cumsum(spans)])
            # A chunk ends with the record that makes it large enough.
            first = 0
            while first < len(of_file):
                end = np.searchsorted(places, places[first] + chunk_bytes, side="left")
                last = min(max(int(end), first + 1), len(of_file))
                self._chunks.append((number, int(places[first]), of_file[first:last]))
                largest = max(largest, int(places[last] - places[first]))
                first = last
        if not self._chunks:
            raise ValueError(f"There is no record in {paths[0]} and {len(paths) - 1} other files")
        self.sizes = np.array([len(of_chunk) for _, _, of_chunk in self._chunks])
        total, count = sum(int(of_file.sum()) for of_file in lengths), int(self.sizes.sum())
        self.leaves = [Leaf(np.dtype(object), (), total / count + _HEAD + _TAIL)]
        self.chunk_bytes = largest + 16 * int(self.sizes.max())
        self.scratch_bytes = 0
        self.kept_bytes = 8 * count

    def room(self, chunks: int) -> Rows:
        """Room for so many chunks."""
        return Rows(self.leaves, self.sizes, chunks)

    def read(self, chunks: list[int], room: Rows) -> None:
        """Read chunks."""
        (texts,) = room.parts
        done = filled = 0
        for chunk in chunks:
            number, place, lengths = self._chunks[chunk]
            ends = np.cumsum(lengths + (_HEAD + _TAIL)) - _TAIL
            count, size = len(lengths), int(ends[-1]) + _TAIL
            with open(self._paths[number], "rb", buffering=0) as file:
                read_at(file, place, texts.place(size, filled))
            texts.ends[done : done + count] = ends + filled
            texts.starts[done : done + count] = ends - lengths + filled
            done, filled = done + count, filled + size


def record_lengths(path: str) -> Any:
    """The length of each record of a file.

    Raises:
        ValueError: If it is no TFRecord file, or one that is compressed or cut short.
    """
    size = os.path.getsize(path)
    lengths: list[int] = []
    place = 0
    with open(path, "rb", buffering=1 << 16) as file:
        while place < size:
            head = file.read(_HEAD)
            length = struct.unpack("<Q", head[:8])[0] if len(head) == _HEAD else size
            place += _HEAD + length + _TAIL
            if place > size:
                hint = "It is compressed." if not lengths and head[:2] == b"\x1f\x8b" else (
                    "It is cut short, or something else."
                )  # fmt: skip
                raise ValueError(
                    f"{path} can't be read as TFRecords: record {len(lengths)} goes beyond the "
                    f"file's {size:,} bytes. {hint} legroom.stream needs them whole and "
                    "uncompressed."
                )
            lengths.append(length)
            file.seek(length + _TAIL, os.SEEK_CUR)
    return np.array(lengths, np.int64)
