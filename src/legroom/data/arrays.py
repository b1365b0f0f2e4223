"""Arrays as a source: in memory, or in `.npy` files that are read where they are needed."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from keras import tree

from legroom.data.files import read_at
from legroom.data.source import Leaf, Rows, take_rows

__all__ = ["ArrayFiles", "ArraysInMemory", "is_mapped"]

_SMALL = 8  # chunks


class ArraysInMemory:
    """Makes any batch of any pass over arrays that are in memory anyway.

    Args:
        arrays: In any structure of tuples and dicts.
        batch_size: Samples in a batch.
        shuffle: Whether each pass has an order of its own.
    """

    def __init__(self, arrays: Any, batch_size: int, shuffle: bool) -> None:
        self._arrays = tree.flatten(arrays)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._order: tuple[int, Any] | None = None
        self.structure = _numbered(arrays)
        self.samples = _samples(self._arrays)
        self.leaves = [Leaf.of(array.dtype, array.shape[1:]) for array in self._arrays]

    def __call__(self, seed: int, number: int) -> list[Any]:
        """The leaves of a batch."""
        start, stop = number * self._batch_size, (number + 1) * self._batch_size
        if not self._shuffle:
            rows = np.arange(start, min(stop, self.samples))
            return [take_rows(array, rows) for array in self._arrays]
        order = self._order
        if order is None or order[0] != seed:
            drawn = np.random.Generator(np.random.PCG64(int(seed))).permutation(self.samples)
            order = self._order = int(seed), drawn
        return [take_rows(array, order[1][start:stop]) for array in self._arrays]


class ArrayFiles:
    """Arrays of which some are files.

    Args:
        arrays: In any structure of tuples and dicts; files opened with `mmap_mode="r"`.
        chunk_bytes: What a chunk should take.
    """

    scratch_bytes = 0

    def __init__(self, arrays: Any, chunk_bytes: int) -> None:
        flat = tree.flatten(arrays)
        samples = _samples(flat)
        self.structure = _numbered(arrays)
        self.leaves = [Leaf.of(array.dtype, array.shape[1:]) for array in flat]
        row = max(1, int(sum(leaf.bytes for leaf in self.leaves)))
        self._rows = max(1, chunk_bytes // row)
        self.sizes = np.full(-(-samples // self._rows), self._rows)
        if samples % self._rows:
            self.sizes[-1] = samples % self._rows
        self.chunk_bytes = self._rows * row
        # Labels, mostly: to ask the kernel for a few of them takes longer than to read them.
        small = [is_mapped(array) and array.nbytes <= _SMALL * self.chunk_bytes for array in flat]
        flat = [np.array(array) if few else array for array, few in zip(flat, small, strict=True)]
        self.kept_bytes = sum(array.nbytes for array, few in zip(flat, small, strict=True) if few)
        self._readers = [_rows_of(array) for array in flat]

    def room(self, chunks: int) -> Rows:
        """Room for so many chunks."""
        return Rows(self.leaves, self.sizes, chunks)

    def read(self, chunks: list[int], room: Rows) -> None:
        """Read chunks."""
        done = 0
        for chunk in chunks:
            rows = slice(done, done + int(self.sizes[chunk]))
            for reader, array in zip(self._readers, room.parts, strict=True):
                reader(chunk * self._rows, array[rows])
            done = rows.stop


def is_mapped(array: Any) -> bool:
    """Whether an array, or what it is a view of, is a file."""
    while array is not None:
        if isinstance(array, (np.memmap, mmap.mmap)):
            return True
        array = getattr(array, "base", None)
    return False


def _numbered(arrays: Any) -> Any:
    numbers = iter(range(len(tree.flatten(arrays))))
    return tree.map_structure(lambda _: next(numbers), arrays)


def _samples(arrays: list[Any]) -> int:
    lengths = {len(array) for array in arrays if array.shape}
    if len(lengths) != 1 or not all(array.shape for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(
            "legroom.stream needs arrays with the same number of samples, which is their first "
            f"length. Received arrays of shape {shapes}"
        )
    if 0 in lengths:
        raise ValueError("legroom.stream needs at least one sample. Received: empty arrays")
    return int(lengths.pop())


def _rows_of(array: Any) -> Any:
    """A function that reads rows of an array, from one on, into another array."""
    # Only of an array that is the whole mapping the place in the file is known. It is read and not
    # touched through the mapping: what was touched stays in the process until the kernel is short.
    if isinstance(getattr(array, "base", None), mmap.mmap) and array.flags.c_contiguous:
        file = open(array.filename, "rb", buffering=0)  # noqa: SIM115  open as long as the stream
        row = int(np.prod(array.shape[1:])) * array.dtype.itemsize

        def read(first: int, out: Any) -> None:
            read_at(file, array.offset + first * row, out.reshape(-1).view(np.uint8))

        return read

    def copy(first: int, out: Any) -> None:
        out[...] = array[first : first + len(out)]

    return copy
