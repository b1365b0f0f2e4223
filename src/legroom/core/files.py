"""Files that are either wholly there or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["TEMPORARY_PREFIX", "atomic_file", "write_atomically"]

# What a process that was killed while writing leaves behind can be told by its name.
TEMPORARY_PREFIX = ".unfinished-"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    The data goes to a temporary name in the same folder, is flushed to the disk, and takes the
    real name in one move. An exception leaves nothing.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(
        prefix=f"{TEMPORARY_PREFIX}{target.name}.", dir=target.parent
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(target.parent)


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file wholly or not at all."""
    with atomic_file(path) as file:
        file.write(data)


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk too; some file systems can't, and lose at most the name."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
