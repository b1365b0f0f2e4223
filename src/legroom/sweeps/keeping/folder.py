"""The folder of a sweep: what is known of each trial, found again after the sweep was killed.

FOLDER/
  sweep.json            whose it is, and whether it has ended
  journal.jsonl         what happens in it
  trials/000012/
    config.json         what it is trained with, written when it first starts
    log.txt             what it prints
    journal.jsonl       what happens to it
    snapshots/          what it needs to go on; gone when it has ended
    trial.json          how it ended: written wholly or not at all
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from pathlib import Path
from typing import Any

from legroom.core.errors import SnapshotError
from legroom.core.files import TEMPORARY_PREFIX, write_atomically
from legroom.core.records import Record
from legroom.sweeps.trials.trial import Trial, config_digest, readable

__all__ = ["SweepFolder", "SweepIdentity", "TrialConfig"]

_IDENTITY, _JOURNAL, _TRIALS = "sweep.json", "journal.jsonl", "trials"
_PREVIOUS, _LOCK = "previous", "lock"
_CONFIG, _RESULT, _SNAPSHOTS = "config.json", "trial.json", "snapshots"


@dataclasses.dataclass(frozen=True)
class SweepIdentity(Record):
    """Which sweep it is.

    Attributes:
        name: The name of the function that trains, or the script.
        code: A fingerprint of its code.
        seed: What the seeds of the trials are made of.
        started: When it began, in seconds since the epoch.
        ended: Whether it has come to its end.
    """

    name: str
    code: str = ""
    seed: int = 0
    started: float = dataclasses.field(default_factory=time.time)
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class TrialConfig(Record):
    """What a trial is trained with.

    Attributes:
        digest: What tells its config from others.
        config: The config, as far as JSON can hold it.
        seed: What its random numbers begin with.
    """

    digest: str
    config: Any
    seed: int


class SweepFolder:
    """A sweep's folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None
        self._resumes = False

    @property
    def where(self) -> str:
        """Where it is, for people."""
        return str(self.path)

    @property
    def journal(self) -> Path:
        """Where the sweep's own events go."""
        return self.path / _JOURNAL

    @property
    def resumes(self) -> bool:
        """Whether an earlier sweep goes on here."""
        return self._resumes

    def open(self, identity: SweepIdentity) -> SweepIdentity | None:
        """Take the folder for this process, and find out what is in it.

        Returns:
            The sweep that was put aside because it was interrupted, and is another one.

        Raises:
            OSError: If it can't be written.
            SnapshotError: If another sweep works there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._take()
        ignore = self.path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        kept = self._identity()
        same = kept is not None and (kept.name, kept.code, kept.seed) == (
            identity.name,
            identity.code,
            identity.seed,
        )
        self._resumes = same and kept is not None and not kept.ended
        aside = None
        if not self._resumes:
            aside = kept if kept is not None and not kept.ended else None
            self._put_aside()
            self._write(self.path / _IDENTITY, identity)
        return aside

    def close(self, identity: SweepIdentity, *, ended: bool) -> None:
        """Give the folder up."""
        if ended:
            with contextlib.suppress(OSError):
                self._write(self.path / _IDENTITY, dataclasses.replace(identity, ended=True))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def trial(self, number: int) -> Path:
        """The folder of a trial."""
        return self.path / _TRIALS / f"{number:06}"

    def snapshots(self, number: int) -> Path:
        """Where a trial's snapshots are."""
        return self.trial(number) / _SNAPSHOTS

    def finished(self, number: int, config: Any) -> Trial | None:
        """How a trial has ended before, if it has, and with this config."""
        if not self._resumes:
            return None
        try:
            trial = Trial.from_json((self.trial(number) / _RESULT).read_text())
        except (OSError, ValueError):
            return None
        if config_digest(trial.config) != config_digest(config):
            return None
        return dataclasses.replace(trial, config=config)

    def begin(self, number: int, config: Any, seed: int) -> None:
        """Make a trial's folder, or clear it of what is another trial's.

        Raises:
            OSError: If it can't be written.
        """
        folder = self.trial(number)
        wanted = TrialConfig(config_digest(config), readable(config), seed)
        with contextlib.suppress(OSError, ValueError):
            if TrialConfig.from_json((folder / _CONFIG).read_text()) == wanted:
                self.snapshots(number).mkdir(exist_ok=True)
                for left in folder.rglob(f"{TEMPORARY_PREFIX}*"):
                    left.unlink()
                return
        if folder.exists():
            shutil.rmtree(folder)
        self.snapshots(number).mkdir(parents=True)
        self._write(folder / _CONFIG, wanted)

    def end(self, trial: Trial) -> None:
        """Write down how a trial ended, and remove what it would have needed to go on.

        Raises:
            OSError: If it can't be written; then its snapshots stay.
        """
        record = dataclasses.replace(trial, config=readable(trial.config))
        self._write(self.trial(trial.number) / _RESULT, record)
        shutil.rmtree(self.snapshots(trial.number), ignore_errors=True)

    def _identity(self) -> SweepIdentity | None:
        try:
            return SweepIdentity.from_json((self.path / _IDENTITY).read_text())
        except (OSError, ValueError):
            return None

    def _put_aside(self) -> None:
        trials, previous = self.path / _TRIALS, self.path / _PREVIOUS
        if trials.exists():
            shutil.rmtree(previous, ignore_errors=True)
            previous.mkdir(exist_ok=True)
            for name in (_TRIALS, _IDENTITY, _JOURNAL):
                with contextlib.suppress(OSError):
                    os.replace(self.path / name, previous / name)

    @staticmethod
    def _write(path: Path, record: Record) -> None:
        write_atomically(path, record.to_json(indent=1).encode() + b"\n")

    def _take(self) -> None:
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise SnapshotError(
                f"Another sweep works in {self.path} right now, and two can't share a folder. "
                "Wait for it, or give this one a folder of its own: folder=…"
            ) from None
        except (ImportError, OSError):
            pass  # not a Unix, or a file system without locks
        self._lock = handle
