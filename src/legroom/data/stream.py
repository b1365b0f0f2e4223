"""``legroom.stream``: data that need not be in memory, as a pipeline that stays in a budget."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from legroom.backends.base import named
from legroom.core.errors import BadBudgetError
from legroom.core.units import format_bytes, parse_size
from legroom.data.arrays import ArrayFiles, ArraysInMemory, is_mapped
from legroom.data.images import is_image, list_images
from legroom.data.parquet import ParquetFiles
from legroom.data.source import Leaf, Source
from legroom.data.tfrecords import RecordFiles
from legroom.data.windows import WindowReader
from legroom.machine.memory import host_limit

__all__ = ["stream"]

_CHUNK = 2**20
_CHUNKS = 256  # of a window, at least, where samples are small enough: a window is well mixed then
# Batches are made in turns, of so many, so many bytes and such a share of the budget at most.
_TURN, _TURN_BYTES, _TURN_SHARE = 8, 2**23, 10
# In flight, in turns of one: two that wait, one being made and its parts, two used. Each batch
# more in a turn is one that is made and one that waits.
_BATCHES = 6
# What allocators, threads and graphs take beside: an eighth, and so many bytes.
_BESIDE = 2**24
_EXPECTED = (
    "Expected arrays, .npy files, TFRecord or Parquet files (a path, a pattern as in "
    '"data/*.tfrecord", or a list), or a folder of images.'
)


def stream(
    source: Any,
    *,
    batch_size: int = 32,
    memory: str | int = "1GiB",
    shuffle: bool = True,
    seed: int = 0,
    image_size: tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
) -> Any:
    """Read data while it is trained on, in no more memory than is given.

    Each pass gives every sample once, in an order of its own; the orders are the same in every
    process. `legroom run` finds the place in the data again without reading up to it.

    Args:
        source: Arrays in any structure of tuples and dicts, in memory or `.npy` files (their paths,
            or opened with `mmap_mode="r"`); TFRecord or Parquet files: a path, a pattern, a list
            of paths, or a folder; a folder of images, with one folder in it for each class.
        batch_size: Samples in a batch.
        memory: The main memory that the pipeline may hold, beside what is in memory anyway.
        shuffle: Whether samples come in a random order.
        seed: What the orders are drawn from.
        image_size: Height and width that images are brought to. Without it they must be of one
            size.
        columns: The columns of Parquet files that are read; all of them without it.

    Returns:
        A `tf.data.Dataset` of batches. Arrays keep their structure and type, TFRecords are the
        bytes they are (for `map(lambda batch: tf.io.parse_example(batch, …))`), Parquet rows are a
        dict of columns, images are uint8, of three channels, with the number of their class.
        Further stages can follow; `class_names` has the names of the classes.

    Raises:
        BadBudgetError: If the memory is too small even for a few batches.
        TypeError: If the source is none of these.
        ValueError: If something is wrong with it.
    """
    if not batch_size >= 1 or batch_size != int(batch_size):
        raise ValueError(f"batch_size must be a whole number above 0. Received: {batch_size!r}")
    budget = parse_size(memory, whole=host_limit())
    streams = named("tensorflow").streams
    folder = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    if folder is not None and os.path.isdir(folder) and not _data_files(folder):
        paths, labels, names = list_images(folder)
        listed = np.array(paths, object)
        arrays = ArraysInMemory(
            listed if labels is None else (listed, labels), batch_size, bool(shuffle)
        )
        height, width = image_size or streams.image_size_of(paths[0])
        batch = Leaf.of(np.uint8, (height, width, 3)).bytes * batch_size
        names_bytes = sum(map(len, paths)) + 120 * len(paths)
        _needed(budget, _BATCHES * batch + names_bytes, f"batches of {batch_size} images")
        return streams.image_batches(
            arrays, arrays.structure, len(paths), batch_size, seed, (height, width),
            image_size is not None, names, int(budget - names_bytes),
        )  # fmt: skip
    files = _opened(source, budget, columns)
    if isinstance(files, tuple):
        arrays = ArraysInMemory(files[0], batch_size, bool(shuffle))
        turn, in_flight = _turn(arrays.leaves, batch_size, budget)
        _needed(budget, in_flight + 8 * arrays.samples, f"batches of {batch_size} samples")
        return streams.batches(
            arrays, arrays.leaves, arrays.structure, arrays.samples, batch_size, seed, turn
        )
    samples = int(files.sizes.sum())
    turn, in_flight = _turn(files.leaves, batch_size, budget)
    at_once = _chunks_at_once(files, budget, batch_size, in_flight)
    reader = WindowReader(files, batch_size, at_once, bool(shuffle))
    return streams.batches(reader, files.leaves, files.structure, samples, batch_size, seed, turn)


def _turn(leaves: list[Leaf], batch_size: int, budget: int) -> tuple[int, float]:
    """The batches that are made at a time, and what all that are in flight take."""
    batch = max(1, batch_size * sum(leaf.bytes for leaf in leaves))
    turn = int(min(_TURN, max(1, min(_TURN_BYTES, budget // _TURN_SHARE) // batch)))
    if any(leaf.dtype == object for leaf in leaves):
        turn = 1  # texts are there twice for a while, and take so long that turns would save little
    return turn, (_BATCHES + 2 * (turn - 1)) * batch


def _chunks_at_once(source: Source, budget: int, batch_size: int, in_flight: float) -> int:
    """The chunks that each of two windows can have."""
    rest = in_flight + source.scratch_bytes + source.kept_bytes
    room = budget - min(budget // 2, budget // 8 + _BESIDE)
    orders = 8 * int(source.sizes.max())  # of the samples in a chunk
    least = rest + 2 * (source.chunk_bytes + orders)
    hint = ""
    if isinstance(source, ParquetFiles):
        hint = (
            f" The largest row group has {int(source.sizes.max()):,} rows, and is read as a "
            "whole: row_group_size= makes smaller ones when the file is written."
        )
    _needed(budget, min(2 * least, (least + _BESIDE) * 8 / 7), f"batches of {batch_size} samples",
            hint)  # fmt: skip
    fits = int((room - rest) // (2 * (source.chunk_bytes + orders)))
    return min(fits, len(source.sizes))


def _needed(budget: int, least: float, what: str, hint: str = "") -> None:
    if budget < least:
        raise BadBudgetError(
            f"memory={format_bytes(budget)} is too little for a stream of {what}: it needs at "
            f"least {format_bytes(least)}. Give it more, or smaller batches.{hint}"
        )


def _opened(source: Any, budget: int, columns: Any) -> Source | tuple[Any]:
    """The source of a stream; arrays that are all in memory, in a tuple."""
    chunk = max(1, min(_CHUNK, budget // (2 * _CHUNKS)))
    paths = _paths(source)
    if paths is not None and not paths[0].endswith(".npy"):
        kinds = {_kind(path) for path in paths}
        if kinds == {"parquet"}:
            return ParquetFiles(paths, columns)
        if kinds == {"tfrecord"}:
            return RecordFiles(paths, chunk)
        raise ValueError(
            f"legroom.stream can't read {paths[0]} and {len(paths) - 1} other files together, "
            f"which look like {' and '.join(sorted(kinds))}. {_EXPECTED}"
        )
    arrays = _arrays(source)
    from keras import tree

    leaves = tree.flatten(arrays)
    if any(is_mapped(array) for array in leaves):
        return ArrayFiles(arrays, chunk)
    return (arrays,)


def _paths(source: Any) -> list[str] | None:
    """The files that a source names, if that is what it does."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if os.path.isdir(path):
            return _data_files(path)
        found = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        if not found or not os.path.isfile(found[0]):
            raise FileNotFoundError(f"There is no file {path}. {_EXPECTED}")
        return found
    if not isinstance(source, (list, tuple)) or not source:
        return None
    if not all(isinstance(part, (str, os.PathLike)) for part in source):
        return None
    found = [os.fspath(part) for part in source]
    missing = [path for path in found if not os.path.isfile(path)]
    if missing:
        raise FileNotFoundError(f"There is no file {missing[0]}. {_EXPECTED}")
    return found


def _data_files(folder: str) -> list[str]:
    """The TFRecord and Parquet files in a folder, by what is in them."""
    found = sorted(entry.path for entry in os.scandir(folder) if entry.is_file())
    return [
        path
        for path in found
        if not is_image(os.path.basename(path))
        and os.path.getsize(path)
        and _kind(path) in ("parquet", "tfrecord")
    ]


def _kind(path: str) -> str:
    """What a file is, by its first bytes; its name may say anything."""
    with open(path, "rb") as file:
        head = file.read(12)
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:6] == b"\x93NUMPY":
        return "an array"
    named = any(part in os.path.basename(path).lower() for part in ("tfrecord", "tfrec"))
    length = int.from_bytes(head[:8], "little")
    fits = len(head) == 12 and length + 16 <= os.path.getsize(path)
    return "tfrecord" if named or fits else "something else"


def _arrays(source: Any) -> Any:
    """Arrays in the structure that they were given in, files opened."""
    if isinstance(source, (str, os.PathLike)):
        return np.load(source, mmap_mode="r")
    if isinstance(source, Mapping):
        return {name: _arrays(part) for name, part in source.items()}
    if isinstance(source, (list, tuple)) and source:
        # tf.data would make one tensor of a list.
        return tuple(_arrays(part) for part in source)
    if isinstance(source, np.ndarray):
        return source
    if hasattr(source, "numpy") and hasattr(source, "shape"):
        return source.numpy()
    raise TypeError(f"legroom.stream can't read a {type(source).__name__}. {_EXPECTED}")
