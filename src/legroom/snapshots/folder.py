"""The folder of a run: which snapshots are in it, whose they are, and who may write there.

Imports no framework and no NumPy: the parent of ``legroom run`` looks in here too. Files are known
by their names, and nothing else is ever touched: the folder may be the user's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from pathlib import Path

from legroom.core.errors import SnapshotError
from legroom.core.files import TEMPORARY_PREFIX, write_atomically
from legroom.core.records import Record

__all__ = ["KEPT", "RunFolder", "RunIdentity"]

KEPT = 2  # snapshots of the training that runs
_DIGITS = 9
_SNAPSHOT = re.compile(r"training-(\d+)-(\d+)\.snapshot")
_RESULT = re.compile(r"training-(\d+)\.finished")
_DAMAGED = re.compile(r"training-(\d+)(-\d+)?\.damaged")
_IDENTITY, _JOURNAL, _LOCK, _IGNORE = "run.json", "journal.jsonl", "lock", ".gitignore"
_PREVIOUS = "previous"
_IGNORED = """\
# legroom keeps here what a run needs to resume after it was killed, and removes it when the run has
# finished. You can delete it when nothing runs; the run then starts from the beginning.
*
"""


@dataclasses.dataclass(frozen=True)
class RunIdentity(Record):
    """Whose snapshots these are.

    Attributes:
        script: The script's path.
        arguments: Its arguments.
        code: A fingerprint of its code.
        seed: What random numbers begin with, where the script itself does not say.
        started: When the run began, in seconds since the epoch.
    """

    script: str
    arguments: tuple[str, ...] = ()
    code: str = ""
    seed: int = 0
    started: float = 0.0


class RunFolder:
    """A run's folder.

    Args:
        path: The folder. It is made by `open`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._made: list[Path] = []

    @property
    def journal(self) -> Path:
        """Where the events go."""
        return self.path / _JOURNAL

    def open(self) -> None:
        """Make the folder, take it for this process, and clean up after one that was killed.

        Raises:
            OSError: If it can't be written.
            SnapshotError: If another run has it.
        """
        for folder in (*reversed(self.path.absolute().parents), self.path):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                self._made.append(folder)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._take(handle)
        except BaseException:
            os.close(handle)
            raise
        self._lock = handle
        ignore = self.path / _IGNORE
        if not ignore.exists():
            ignore.write_text(_IGNORED)
            # Tried here, so that a full disk or a folder without rights is known at once.
        for left in self.path.glob(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(OSError):
                left.unlink()

    def close(self) -> None:
        """Give the folder up; if there is nothing in it to go on with, leave nothing behind."""
        if self._lock is None:
            return
        if not self.has_snapshots():
            self.clear()
            names = {entry.name for entry in self.path.iterdir()}
            if names <= {_LOCK, _IGNORE}:
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                for folder in (self.path, *(f for f in reversed(self._made) if f != self.path)):
                    with contextlib.suppress(OSError):  # others have put something there
                        folder.rmdir()
                parent = self.path.parent
                if parent.name == ".legroom":
                    with contextlib.suppress(OSError):
                        parent.rmdir()
        os.close(self._lock)
        self._lock = None

    def has_snapshots(self) -> bool:
        """Whether there is anything to go on with."""
        return any(_SNAPSHOT.fullmatch(n) or _RESULT.fullmatch(n) for n in self._names())

    def identity(self) -> RunIdentity | None:
        """Whose snapshots are here; None where that can't be told."""
        try:
            return RunIdentity.from_json((self.path / _IDENTITY).read_text())
        except (OSError, ValueError):
            return None

    def begin(self, identity: RunIdentity) -> None:
        """Write down whose snapshots will be here."""
        write_atomically(self.path / _IDENTITY, identity.to_json(indent=1).encode() + b"\n")

    def snapshots(self, training: int) -> list[Path]:
        """The snapshots of a training, the newest first."""
        found = [
            (int(match[2]), self.path / name)
            for name in self._names()
            if (match := _SNAPSHOT.fullmatch(name)) and int(match[1]) == training
        ]
        return [path for _, path in sorted(found, reverse=True)]

    def trainings(self) -> list[int]:
        """The trainings that something is kept of, the latest first."""
        numbers = {_training(name) for name in self._names() if not _DAMAGED.fullmatch(name)}
        return sorted((number for number in numbers if number is not None), reverse=True)

    def next_snapshot(self, training: int) -> Path:
        """The name of a training's next snapshot."""
        newest = self.snapshots(training)[:1]
        number = int(_SNAPSHOT.fullmatch(newest[0].name)[2]) + 1 if newest else 0  # type: ignore[index]
        return self.path / f"training-{training:04}-{number:0{_DIGITS}}.snapshot"

    def result(self, training: int) -> Path:
        """The name of the file that a training which has finished leaves."""
        return self.path / f"training-{training:04}.finished"

    def keep_newest(self, training: int, count: int = KEPT) -> None:
        """Remove all but the newest snapshots of a training."""
        for old in self.snapshots(training)[count:]:
            with contextlib.suppress(OSError):
                old.unlink()

    def set_aside(self, from_training: int | None = None) -> Path:
        """Move what is here into a folder of its own, in place of what was put there before.

        Args:
            from_training: Only what belongs to this training and to those after it, because the
                run itself goes on; by default the whole run.
        """
        previous = self.path / _PREVIOUS
        RunFolder(previous).clear()
        previous.mkdir(exist_ok=True)
        for name in self._names():
            number = _training(name)
            mine = number is not None and number >= (from_training or 0)
            if mine or (from_training is None and name in (_IDENTITY, _JOURNAL)):
                os.replace(self.path / name, previous / name)
            elif name == _IDENTITY or number is not None:
                shutil.copy2(self.path / name, previous / name)
        return previous

    def clear(self) -> None:
        """Remove a run's files."""
        for name in self._names():
            if _training(name) is not None or name in (_IDENTITY, _JOURNAL):
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:
            return []

    def _take(self, handle: int) -> None:
        try:
            import fcntl
        except ImportError:  # not a Unix: nothing keeps two runs apart there
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(
                f"Another run works in {self.path} right now, and two can't share a folder: each "
                "would overwrite the snapshots of the other. Wait for it, or give this one a "
                "folder of its own: legroom run --dir OTHER script.py"
            ) from None
        except OSError:
            return  # a file system without locks


def _training(name: str) -> int | None:
    """The training that a file belongs to; None for other files."""
    for pattern in (_SNAPSHOT, _RESULT, _DAMAGED):
        if match := pattern.fullmatch(name):
            return int(match[1])
    return None
