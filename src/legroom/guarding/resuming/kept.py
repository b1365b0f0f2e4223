"""A single training that is kept in a folder: `legroom.fit(…, snapshots="folder")`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from legroom.core.events import Note, emit

__all__ = ["kept_in"]


@contextlib.contextmanager
def kept_in(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Keep the training in this context in a folder, and empty it when the training has ended.

    Raises:
        SnapshotError: If another process trains there.
    """
    from legroom.guarding.session import terminal
    from legroom.snapshots.folder import RunFolder
    from legroom.snapshots.run import SnapshotRun, current_run, running

    if path is None or current_run() is not None:
        yield  # not wanted, or `legroom run` does it already
        return
    folder = RunFolder(path)
    try:
        folder.open()
    except OSError as error:
        with terminal():
            text = (
                f"{folder.path} can't be written ({error.strerror or error}): the training runs, "
                "but it can't resume if the process is killed"
            )
            emit(Note(text))
        yield
        return
    try:
        with running(SnapshotRun(folder)):
            yield
        folder.clear()
    finally:
        folder.close()
