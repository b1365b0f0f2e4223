"""A sweep's folder on storage that is reached by a URL, and not by a path.

Each machine works in a folder of its own, and copies what changes: a trial brings its snapshots
there, and the machine that goes on with it fetches them. Snapshots never change once they have
their name, and are written wholly, so what was copied is whole or missing.
"""

from __future__ import annotations

import contextlib
import posixpath
import tempfile
from pathlib import Path
from typing import Any

from legroom.core.files import TEMPORARY_PREFIX
from legroom.sweeps.keeping.folder import SweepFolder, SweepIdentity
from legroom.sweeps.trials.trial import Trial

__all__ = ["MirroredFolder"]


class MirroredFolder(SweepFolder):
    """A sweep's folder, with its original elsewhere.

    Args:
        url: Where the original is: "s3://bucket/sweep".
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url)
        self._own = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        self._sent: dict[str, tuple[int, int]] = {}
        self.url = url
        super().__init__(Path(self._own.name))

    @property
    def where(self) -> str:
        """Where the original is."""
        return self.url

    def open(self, identity: SweepIdentity) -> SweepIdentity | None:
        """Fetch what is known of an earlier sweep, and find out whether it is this one."""
        self._fetch("sweep.json")
        for path in self._files.glob(posixpath.join(self._root, "trials", "*", "trial.json")):
            self._fetch(posixpath.relpath(path, self._root))
        aside = super().open(identity)
        if not self.resumes:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(self._remote("trials"), recursive=True)
        self._send(self.path / "sweep.json")
        return aside

    def close(self, identity: SweepIdentity, *, ended: bool) -> None:
        """Give the folder up."""
        super().close(identity, ended=ended)
        for name in ("sweep.json", "journal.jsonl"):
            self._send(self.path / name)
        self._own.cleanup()

    def begin(self, number: int, config: Any, seed: int) -> None:
        """Make a trial's folder, with what another machine has left of it."""
        if not self.trial(number).exists():
            with contextlib.suppress(FileNotFoundError):
                for path in self._files.find(self._remote(self._name(self.trial(number)))):
                    self._fetch(posixpath.relpath(path, self._root))
        super().begin(number, config, seed)

    def end(self, trial: Trial) -> None:
        """Write down how a trial ended."""
        self.trial(trial.number).mkdir(parents=True, exist_ok=True)
        super().end(trial)
        self._send(self.trial(trial.number) / "trial.json")
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._remote(self._name(self.snapshots(trial.number))), recursive=True)

    def share(self, number: int) -> None:
        """Copy what has changed of a trial to the original, and remove there what is gone here."""
        folder = self.trial(number)
        here = {self._name(path) for path in folder.rglob("*") if path.is_file()}
        for name in sorted(here):
            if TEMPORARY_PREFIX not in name:
                with contextlib.suppress(FileNotFoundError):  # an old snapshot that just went
                    self._send(self.path / name)
        for name in [name for name in self._sent if name not in here]:
            if name.startswith(self._name(folder)):
                del self._sent[name]
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm(self._remote(name))

    def _fetch(self, name: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._files.get_file(self._remote(name), str(target))
            self._sent[name] = _state(target)

    def _send(self, path: Path) -> None:
        if not path.exists():
            return
        name, state = self._name(path), _state(path)
        if self._sent.get(name) != state:
            self._files.makedirs(posixpath.dirname(self._remote(name)), exist_ok=True)
            self._files.put_file(str(path), self._remote(name))
            self._sent[name] = state

    def _name(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _remote(self, name: str) -> str:
        return posixpath.join(self._root, name)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
