"""The run that this process is: where its snapshots go, and how often."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from legroom.core.errors import SnapshotError
from legroom.core.events import Note, SnapshotTaken, SnapshotWritten, emit
from legroom.core.units import format_bytes
from legroom.snapshots.folder import RunFolder
from legroom.snapshots.format import Content, read_file, write_file
from legroom.snapshots.writer import Writer

__all__ = ["EVERY", "SnapshotRun", "current_run", "running"]

EVERY = 60.0  # seconds
# At most this part of the time goes into snapshots that only the end of an epoch asks for, and
# into the results of trainings: a script may call `fit` a thousand times.
_SHARE = 0.01
_SHARE_OF_RESULTS = 0.05


class SnapshotRun:
    """Writes and finds the snapshots of one run, training by training.

    Args:
        folder: Where they are. Someone has opened it.
        every: Seconds between two snapshots.
        seed: What random numbers begin with where the script does not say.
        barred: Slice sizes that ended an earlier process, by training and what they were for.
        lean: Whether the host's memory is known to be short: read less ahead.
        tried: Whether a training like this has run in this memory before, with whole batches.
        script_folder: Where the script's own modules are, whose code is part of what is trained.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        every: float = EVERY,
        seed: int | None = None,
        barred: dict[tuple[int | None, str], int] | None = None,
        lean: bool = False,
        tried: bool = False,
        script_folder: Path | None = None,
    ) -> None:
        self.folder = folder
        self.every = every
        self.seed = int.from_bytes(os.urandom(6), "little") if seed is None else seed
        self.barred = barred or {}
        self.lean = lean
        self.tried = tried
        self.script_folder = script_folder
        self.training: int | None = None  # the one that runs now
        self.restored: int | None = None  # the pass of a loop whose end was put in place last
        self.last_pass: int | None = None  # of a loop, whose end is kept
        self._loop: tuple[int, list[Callable[[], Any]]] = (-1, [])
        self.said_from_top = False
        self._trainings = 0
        self._process = os.getpid()
        self._writer = Writer(self._failed)
        self._warned = False
        self._short = False
        self._last = time.monotonic()
        self._written = float("-inf")
        self._cost = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the run is, and not one that it has forked."""
        return self._process == os.getpid()

    def next_training(self) -> int:
        """The number of the training that begins now."""
        self._trainings += 1
        self._last = time.monotonic()
        return self._trainings - 1

    def due(self, *, epoch_ended: bool) -> bool:
        """Whether it is time for a snapshot."""
        since = time.monotonic() - self._last
        if self._writer.busy:
            return False
        return since >= self.every or (epoch_ended and since * _SHARE >= self._cost)

    def due_result(self) -> bool:
        """Whether the result of a training that has ended is to be kept.

        If it is not, because so much was kept a moment ago, a resumed run trains it again from its
        last snapshot, or from the result before it: the same, for a moment's more work.
        """
        since = time.monotonic() - self._written
        return since >= self.every or since * _SHARE_OF_RESULTS >= self._cost

    def write(
        self,
        training: int,
        collect: Callable[[list[Any]], dict[str, Any]],
        *,
        finished: bool = False,
        at_once: bool = False,
        epoch: int | None = None,
        step: int | None = None,
    ) -> None:
        """Take a snapshot: collect here and now, write in the background.

        Args:
            training: Its number.
            collect: Puts arrays into a list, and returns the values that refer to them.
            finished: The training has ended, and this is its result.
            at_once: Return when it is written.
            epoch: Where the training is, for the journal.
            step: Where in the epoch.
        """
        self._writer.wait()
        began = time.monotonic()
        arrays: list[Any] = []
        values = collect(arrays)
        self._cost = time.monotonic() - began
        path = self.folder.result(training) if finished else self.folder.next_snapshot(training)
        emit(SnapshotTaken(training=training, file=path.name))

        def task() -> None:
            size = write_file(path, values, arrays)
            self.folder.keep_newest(training, 0 if finished else 2)
            emit(
                SnapshotWritten(
                    training=training,
                    epoch=epoch,
                    step=step,
                    finished=finished,
                    file=path.name,
                    bytes=size,
                    copy_seconds=self._cost,
                    seconds=time.monotonic() - began,
                )
            )

        self._writer.write(task)
        if at_once:
            self._writer.wait()
        self._last = self._written = time.monotonic()

    def no_room(self, needed: int) -> None:
        """There is no memory for the copy that a snapshot is: said once, and tried again later."""
        self._last = time.monotonic()
        if not self._short:
            self._short = True
            text = (
                f"a snapshot needs {format_bytes(needed)} of main memory, and there is less: the "
                "training continues without it, and legroom tries again later"
            )
            emit(Note(text))

    def wait(self) -> None:
        """Wait until all is written."""
        self._writer.wait()

    def close(self) -> None:
        """End the run: all is written."""
        self._writer.close()

    def result(self, training: int) -> Content | None:
        """What a training that has finished left."""
        path = self.folder.result(training)
        return self._read(path) if path.exists() else None

    def newest(self, training: int) -> Content | None:
        """The newest snapshot of a training that can be trusted."""
        for path in self.folder.snapshots(training):
            content = self._read(path)
            if content is not None:
                return content
        return None

    def newest_after(self, training: int, loop: int | None = None) -> Content | None:
        """The newest thing that is kept of anything after a training.

        Args:
            training: Its number.
            loop: The loop whose passes alone are asked for.
        """
        for number in self.folder.trainings():
            if number > training:
                content = self.result(number) or self.newest(number)
                if content is not None and loop in (None, content.values.get("loop")):
                    return content
        return None

    def loop_of(self, number: int, parts: Sequence[Any]) -> int:
        """The loop that a pass belongs to: the number of its first pass.

        Passes that change the same objects, one after the other, are one loop's.

        Args:
            number: The pass.
            parts: What it changes; they are not held.
        """
        known = self._loop[1]
        if len(known) != len(parts) or any(
            one() is not part for one, part in zip(known, parts, strict=True)
        ):
            self._loop = number, [_reference(part) for part in parts]
        return self._loop[0]

    def forget(self, training: int) -> None:
        """Remove the result of a pass of a loop: a later one has what is needed."""
        path = self.folder.result(training)
        with contextlib.suppress(OSError):
            self._writer.wait()
            path.unlink(missing_ok=True)

    def start_anew(self, training: int, told: str) -> None:
        """Put aside what is kept of a training and of those after it: it is another one now."""
        try:
            where = f" What was kept of it is now in {self.folder.set_aside(training)}."
        except OSError:
            where = ""
        emit(Note(f"{told}.{where}"))

    def _read(self, path: Path) -> Content | None:
        try:
            return read_file(path)
        except SnapshotError as error:
            emit(Note(f"{error} It is not used; the one before it is, if there is one"))
            # A name that is found again would be tried again, and stand for a newer one.
            with contextlib.suppress(OSError):
                os.replace(path, path.with_suffix(".damaged"))
            return None

    def _failed(self, error: Exception) -> None:
        """A snapshot could not be written: said once, and the training goes on."""
        if self._warned:
            return
        self._warned = True
        why = "the disk is full" if getattr(error, "errno", 0) in (
            errno.ENOSPC, errno.EDQUOT,
        ) else str(error)  # fmt: skip
        text = (
            f"a snapshot could not be written to {self.folder.path}: {why}. The training "
            "continues. If it is killed now, it resumes from the last snapshot that was written, "
            "or starts from the beginning. The next snapshot is tried as usual"
        )
        emit(Note(text))


def _reference(part: Any) -> Callable[[], Any]:
    """Leads to an object without holding it, if it is no container of Python's."""
    try:
        return weakref.ref(part)
    except TypeError:
        return lambda: part


_current: SnapshotRun | None = None


def current_run() -> SnapshotRun | None:
    """The run of this process, if its snapshots are wanted."""
    return _current if _current is not None and _current.is_here else None


@contextlib.contextmanager
def running(run: SnapshotRun) -> Iterator[SnapshotRun]:
    """Have this be the run of the process."""
    global _current
    before, _current = _current, run
    try:
        yield run
    finally:
        _current = before
        if run.is_here:
            run.close()
