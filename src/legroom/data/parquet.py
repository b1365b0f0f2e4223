"""Parquet files as a source: a row group is a chunk. Needs pyarrow, and only where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from legroom.data.source import Leaf, Rows, Texts

__all__ = ["ParquetFiles"]

_UNPACKED = 10  # times what it is in the file, a file's own description takes in memory


class ParquetFiles:
    """The rows of some Parquet files, as a dict of columns.

    Args:
        paths: The files, all with the same columns.
        columns: Which of them; all without it.
    """

    def __init__(self, paths: list[str], columns: Sequence[str] | None) -> None:
        parquet = _pyarrow()
        self._files = [parquet.ParquetFile(path) for path in paths]
        schema = self._files[0].schema_arrow
        self._columns = list(columns or schema.names)
        missing = [name for name in self._columns if name not in schema.names]
        if missing:
            raise ValueError(
                f"{paths[0]} has no column {missing[0]!r}. It has: {', '.join(schema.names)}"
            )
        for path, file in zip(paths, self._files, strict=True):
            if file.schema_arrow.names != schema.names or file.schema_arrow.types != schema.types:
                raise ValueError(f"{path} has other columns, or other types, than {paths[0]}")
        # pyarrow's own records of all groups together would take tens of kilobytes for each.
        groups = [
            (number, group, table.num_rows, table.total_byte_size)
            for number, file in enumerate(self._files)
            for group in range(file.metadata.num_row_groups)
            for table in [file.metadata.row_group(group)]
            if table.num_rows
        ]
        if not groups:
            raise ValueError(f"There is no row in {paths[0]} and {len(paths) - 1} other files")
        self._groups = [(number, group) for number, group, _, _ in groups]
        self.sizes = np.array([rows for _, _, rows, _ in groups])
        self.structure = {name: number for number, name in enumerate(self._columns)}
        number, group = self._groups[0]
        first = self._files[number].read_row_group(group, columns=self._columns, use_threads=False)
        self.leaves = [_leaf(name, first[name]) for name in self._columns]
        row = sum(leaf.bytes for leaf in self.leaves)
        self.chunk_bytes = int(row * int(self.sizes.max())) + 1
        # The group as it lies in the file, decoded, and in one piece.
        self.scratch_bytes = max(size for _, _, _, size in groups) + 2 * self.chunk_bytes
        footers = sum(file.metadata.serialized_size for file in self._files)
        self.kept_bytes = _UNPACKED * footers

    def room(self, chunks: int) -> Rows:
        """Room for so many chunks."""
        return Rows(self.leaves, self.sizes, chunks)

    def read(self, chunks: list[int], room: Rows) -> None:
        """Read chunks."""
        import pyarrow

        done, filled = 0, dict.fromkeys(self._columns, 0)
        for chunk in chunks:
            number, group = self._groups[chunk]
            table = self._files[number].read_row_group(
                group, columns=self._columns, use_threads=False
            )
            rows = slice(done, done + table.num_rows)
            for name, part in zip(self._columns, room.parts, strict=True):
                if isinstance(part, Texts):
                    offsets, content = _as_bytes(name, table[name])
                    part.place(len(content), filled[name])[:] = content
                    part.starts[rows] = offsets[:-1] + filled[name]
                    part.ends[rows] = offsets[1:] + filled[name]
                    filled[name] += len(content)
                else:
                    part[rows] = _as_array(name, table[name])
            done = rows.stop
        del table
        pyarrow.default_memory_pool().release_unused()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "legroom.stream reads Parquet files with pyarrow, which is not installed here. "
            "To have it: pip install pyarrow"
        ) from None
    return pyarrow.parquet


def _leaf(name: str, column: Any) -> Leaf:
    """What a column is, by the first group of its values."""
    import pyarrow

    kind = pyarrow.types
    texts = (kind.is_string, kind.is_large_string, kind.is_binary, kind.is_large_binary,
             kind.is_fixed_size_binary)  # fmt: skip
    if any(test(column.type) for test in texts):
        offsets, content = _as_bytes(name, column)
        return Leaf(np.dtype(object), (), len(content) / (len(offsets) - 1))
    values = _as_array(name, column)
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"The column {name!r} is {column.type}, which can't be put in a batch. Numbers, "
            "booleans, texts, bytes and lists of one fixed length do; leave it out with "
            "columns=[…]."
        )
    return Leaf.of(values.dtype, values.shape[1:])


def _as_bytes(name: str, column: Any) -> tuple[Any, Any]:
    """Where each text ends in the bytes of all of them, and those bytes."""
    import pyarrow

    values = _whole(name, column).cast(pyarrow.large_binary())
    _, offsets, content = values.buffers()
    places = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    raw = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    return places - places[0], raw[places[0] : places[-1]]


def _as_array(name: str, column: Any) -> Any:
    """A column's values; lists of one length as rows."""
    import pyarrow

    values = _whole(name, column)
    lists = (pyarrow.types.is_list, pyarrow.types.is_large_list)
    if pyarrow.types.is_fixed_size_list(values.type) or any(test(values.type) for test in lists):
        inner = _as_array(name, pyarrow.chunked_array([values.flatten()]))
        length, rest = divmod(len(inner), len(values))
        if any(test(values.type) for test in lists):
            rest = rest or int(np.any(np.diff(values.offsets.to_numpy()) != length))
        if rest:
            raise ValueError(
                f"The column {name!r} holds lists of several lengths, which make no tensor. Lists "
                "of one fixed length do; leave it out with columns=[…]."
            )
        return inner.reshape(len(values), length, *inner.shape[1:])
    return values.to_numpy(zero_copy_only=False)


def _whole(name: str, column: Any) -> Any:
    """A column in one piece, with every value there."""
    import pyarrow

    if column.null_count:
        raise ValueError(
            f"The column {name!r} has {column.null_count:,} missing values (null), which no tensor "
            "can hold: fill them in, or leave the column out with columns=[…]."
        )
    values = column.combine_chunks()
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pyarrow.array([], values.type)
    return values
