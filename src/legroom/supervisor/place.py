"""The place of a run: found again, taken, and left clean."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from legroom.core.errors import SnapshotError
from legroom.report.screen.lines import say
from legroom.snapshots.folder import RunFolder, RunIdentity

__all__ = ["Place", "PlaceOptions", "default_folder", "newest_folder", "place_of_run"]

_LONGEST = 40  # characters of the arguments in a folder's name


@dataclasses.dataclass(frozen=True)
class PlaceOptions:
    """What the user said about the place of a run.

    Attributes:
        folder: Where; beside the script by default.
        fresh: Start from scratch, whatever is there.
        resume: Another run's folder to resume, even if the script was edited since.
    """

    folder: Path | None = None
    fresh: bool = False
    resume: Path | None = None


@dataclasses.dataclass
class Place:
    """Where a run keeps what it needs to go on.

    Attributes:
        folder: The folder; None where nothing can be written, and only the journal is kept.
        journal: The journal's file, if there is room for one.
        seed: What random numbers begin with.
        goes_on: Whether an earlier run goes on.
    """

    folder: RunFolder | None
    journal: Path | None
    seed: int
    goes_on: bool = False


def default_folder(script: Path, arguments: Sequence[str] = ()) -> Path:
    """Where a run is kept: beside the script, in a folder for it and these arguments.

    So one script can be started several times at once with other arguments, and each run is found
    again. The arguments can be read in the name; what tells them apart is its end.
    """
    real = Path(os.path.realpath(script))
    name = real.name
    if arguments:
        words = re.sub(r"[^\w.=]+", "-", " ".join(arguments)).strip("-")[:_LONGEST]
        digest = hashlib.sha256("\0".join(arguments).encode(errors="surrogateescape"))
        name = f"{name}-{words}-{digest.hexdigest()[:8]}"
    return real.parent / ".legroom" / name


def newest_folder(script: Path) -> Path:
    """Where the last run of a script was kept, whatever its arguments were."""
    usual = default_folder(script)
    runs = [
        folder
        for folder in (usual.parent.iterdir() if usual.parent.is_dir() else ())
        if folder.name == usual.name or folder.name.startswith(f"{usual.name}-")
    ]
    return max(runs, key=lambda folder: folder.stat().st_mtime, default=usual)


@contextlib.contextmanager
def place_of_run(script: Path, arguments: Sequence[str], options: PlaceOptions) -> Iterator[Place]:
    """Open the place of a run, and close it in the end.

    Raises:
        SnapshotError: If another run has it, or there is nothing to go on from.
    """
    folder = RunFolder(options.resume or options.folder or default_folder(script, arguments))
    if options.resume is not None and not folder.has_snapshots():
        raise SnapshotError(
            f"There is nothing to resume in {options.resume}: expected the folder of an "
            "interrupted run. Leave --resume out to start the script from the beginning."
        )
    try:
        folder.open()
    except OSError as error:
        say(
            f"{folder.path} can't be written ({error.strerror or error}), so this run can't "
            "resume if it is killed. The script runs anyway. Choose another folder with --dir",
            colour="33",
        )
        with _journal_elsewhere() as journal:
            yield Place(None, journal, _new_seed())
        return
    try:
        yield _begun(folder, script, arguments, options)
    finally:
        folder.close()


def _begun(
    folder: RunFolder, script: Path, arguments: Sequence[str], options: PlaceOptions
) -> Place:
    """Go on with what is there, or put it aside and begin."""
    from legroom.snapshots.code import code_of

    now = RunIdentity(
        script=os.path.realpath(script),
        arguments=tuple(arguments),
        code=code_of(script),
        seed=_new_seed(),
        started=time.time(),
    )
    kept = folder.identity()
    if folder.has_snapshots() and not options.fresh and kept is not None:
        changed = _changed(kept, now)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.started))
        if not changed or options.resume is not None:
            edited = f", although {changed} since" if changed else ""
            say(f"resuming the run of {when}, which was interrupted{edited}")
            return Place(folder, folder.journal, kept.seed, goes_on=True)
        previous = folder.set_aside()
        say(
            f"the run of {when} is not resumed, because {changed} since: this is a new run. "
            f"To resume it anyway: legroom run --resume {_shown(previous)} …",
            colour="33",
        )
    elif folder.has_snapshots():
        folder.set_aside()
    folder.clear()
    with contextlib.suppress(OSError):  # a full disk: snapshots will say so
        folder.begin(now)
    return Place(folder, folder.journal, now.seed)


def _changed(kept: RunIdentity, now: RunIdentity) -> str:
    if kept.script != now.script:
        return f"it is another script ({kept.script} was interrupted)"
    if kept.arguments != now.arguments:
        return "the script's arguments changed"
    if kept.code != now.code:
        return "the script was edited"
    return ""


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _new_seed() -> int:
    return int.from_bytes(os.urandom(6), "little")


@contextlib.contextmanager
def _journal_elsewhere() -> Iterator[Path | None]:
    """A place for the journal alone; None where nothing can be written."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as name:
        yield Path(name) / "journal.jsonl"
