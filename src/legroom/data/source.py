"""What a stream reads from: samples in chunks that lie side by side, and room for some of them."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

__all__ = ["Leaf", "Room", "Rows", "Source", "Texts", "empty", "take_rows"]

_ALIGNED = 64  # bytes


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One part of a sample.

    Attributes:
        dtype: NumPy's type; `object` for texts and bytes of any length.
        shape: Of one sample.
        bytes: What one sample of it takes in memory, on average.
    """

    dtype: Any
    shape: tuple[int, ...]
    bytes: float

    @classmethod
    def of(cls, dtype: Any, shape: tuple[int, ...]) -> Leaf:
        """A leaf whose samples are all of one size."""
        return cls(np.dtype(dtype), shape, float(np.prod(shape)) * np.dtype(dtype).itemsize)


class Room(Protocol):
    """Memory for a window, which is used again and again: fresh pages cost as much as reading."""

    def take(self, rows: Any) -> list[Any]:
        """Some of the samples that were read into it, copied: an array for each leaf."""
        ...


class Source(Protocol):
    """Samples on a disk.

    Attributes:
        leaves: The parts of a sample.
        structure: How they hang together: leaves by their number, in tuples and dicts.
        sizes: The samples in each chunk.
        chunk_bytes: What the largest chunk takes in memory.
        scratch_bytes: What reading a chunk takes beside that, for the moment.
        kept_bytes: What is held as long as the stream is.
    """

    leaves: list[Leaf]
    structure: Any
    sizes: Any
    chunk_bytes: int
    scratch_bytes: int
    kept_bytes: int

    def room(self, chunks: int) -> Room:
        """Room for so many chunks, whichever they are."""
        ...

    def read(self, chunks: list[int], room: Any) -> None:
        """Read chunks, one behind the other, over what was there.

        Args:
            chunks: Their numbers.
            room: Where they go.
        """
        ...


class Texts:
    """Texts and bytes of any length, one behind the other.

    As objects of Python's they would be scattered all over the memory, and their room not be had
    back.

    Args:
        samples: How many there may be.
        size: The bytes they may have together; it grows where that was too little.
    """

    def __init__(self, samples: int, size: int) -> None:
        self.bytes: Any = np.empty(size, np.uint8)
        self.starts: Any = np.empty(samples, np.int64)
        self.ends: Any = np.empty(samples, np.int64)

    def place(self, size: int, start: int) -> Any:
        """So many bytes from a start on, to be written to."""
        if start + size > len(self.bytes):
            larger: Any = np.empty(start + size, np.uint8)
            larger[:start] = self.bytes[:start]
            self.bytes = larger
        return self.bytes[start : start + size]

    def take(self, rows: Any) -> Any:
        """Some of them, as an array of `bytes`."""
        raw = memoryview(self.bytes)
        places = zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
        taken: Any = np.empty(len(rows), object)
        taken[:] = [raw[start:end].tobytes() for start, end in places]
        return taken


class Rows:
    """Room in which each leaf is an array, or texts.

    Args:
        leaves: The parts of a sample.
        sizes: The samples in each chunk.
        chunks: How many chunks there may be.
    """

    def __init__(self, leaves: list[Leaf], sizes: Any, chunks: int) -> None:
        samples = int(np.sort(sizes)[::-1][:chunks].sum())
        self.parts: list[Any] = [
            Texts(samples, int(samples * leaf.bytes))
            if leaf.dtype == object
            else np.empty((samples, *leaf.shape), leaf.dtype)
            for leaf in leaves
        ]

    def take(self, rows: Any) -> list[Any]:
        """Some of the samples."""
        return [
            part.take(rows) if isinstance(part, Texts) else take_rows(part, rows)
            for part in self.parts
        ]


def take_rows(array: Any, rows: Any) -> Any:
    """Some rows of an array, copied."""
    if array.dtype.hasobject:
        return array[rows]
    out = empty((len(rows), *array.shape[1:]), array.dtype)
    return np.take(array, rows, 0, out, mode="clip")


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array that TensorFlow takes over as it is: others, less aligned, it copies."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNED, np.uint8)
    first = -raw.ctypes.data % _ALIGNED
    return raw[first : first + size].view(dtype).reshape(shape)
