"""A run of a script: the child, started again when memory has killed it, and then the report.

The report is made here, in the parent, from the child's journal: a child that was killed still has
one, and the script's own output is complete before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from legroom.core.events import (
    DidNotFit,
    Event,
    Planned,
    Progress,
    RanOut,
    Restarted,
    RunEnded,
    RunStarted,
    TrainingStarted,
)
from legroom.core.files import write_atomically
from legroom.machine.kills import KernelKills
from legroom.report.journal import Journal, read_journal
from legroom.report.reading import RECORD_NAME
from legroom.report.run import RunReport
from legroom.report.screen.lines import say
from legroom.supervisor.deaths import Death, Restarts, read_death
from legroom.supervisor.options import ChildOptions
from legroom.supervisor.place import Place, PlaceOptions, place_of_run
from legroom.supervisor.process import run_child

__all__ = ["Streams", "run_script"]

# A loop written by hand has no start and no end that anyone could see.
_SIGNS_OF_TRAINING = (TrainingStarted, Planned, RanOut, Progress, DidNotFit)
_LAST_LINES = 2**14  # bytes


@dataclasses.dataclass(frozen=True)
class Streams:
    """Where a live view has the child write.

    Attributes:
        stdout: A file descriptor for the child's output; None for this process's own.
        stderr: The same for its errors.
    """

    stdout: int | None = None
    stderr: int | None = None


def run_script(
    script: Path,
    args: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    exact: bool = False,
    json_path: Path | None = None,
    report_folder: Path | None = None,
    place: PlaceOptions | None = None,
    snapshot_every: float = 60.0,
    max_restarts: int = 10,
    streams: Streams | None = None,
    followers: Sequence[Callable[[Path], None]] = (),
) -> int:
    """Run a script in a guarded child process, resume it where memory kills it, and report.

    The closing table is printed if any training was guarded.

    Args:
        script: The script, as the user wrote it.
        args: The script's arguments.
        environment: Variables that the child has beside this process's.
        exact: As in ``legroom.guard``.
        json_path: Where the run's report goes as JSON.
        report_folder: Where it is kept too, to make a page of; more is told for that.
        place: Where snapshots are kept.
        snapshot_every: Seconds between two of them.
        max_restarts: How often a script that memory killed is started again.
        streams: Where its output goes, if not to this process's own.
        followers: Called with the journal's file before the child starts.

    Returns:
        The script's exit code, or the negative number of the signal it died by.

    Raises:
        SnapshotError: If the place is another run's, or there is nothing there to resume.
    """
    with place_of_run(script, args, place or PlaceOptions()) as found:
        options = ChildOptions(
            receipts=-1,
            journal=None if found.journal is None else str(found.journal),
            exact=exact,
            folder=None if found.folder is None else str(found.folder.path),
            snapshot_every=snapshot_every,
            seed=found.seed,
            report=report_folder is not None,
        )
        if found.journal is not None:
            for follow in followers:
                follow(found.journal)
        supervisor = _Supervisor(
            script, args, environment or {}, options, max_restarts, streams or Streams()
        )
        code = supervisor.run(goes_on=found.goes_on)
        supervisor.note(RunEnded(code=code))
        events = [] if found.journal is None else read_journal(found.journal)
        if code == 0 and found.folder is not None:
            found.folder.clear()
    report = RunReport.from_events(events)
    if any(isinstance(event, _SIGNS_OF_TRAINING) for event in report.events):
        from legroom.report.screen.table import (
            print_table,  # rich, only where there is something to show
        )

        print_table(report)
    if json_path is not None:
        _write(report, json_path)
    if report_folder is not None:
        with contextlib.suppress(OSError):  # said below
            report_folder.mkdir(parents=True, exist_ok=True)
        _write(report, report_folder / RECORD_NAME)
    _say_where(found, code)
    return code


def _write(report: RunReport, path: Path) -> None:
    try:
        write_atomically(path, report.to_json(indent=2).encode() + b"\n")
    except OSError as error:
        # The script has run: its exit code is worth more than this.
        say(f"The report could not be written to {path}: {error}", colour="31")


class _Supervisor:
    """Starts the child, and starts it again."""

    def __init__(
        self,
        script: Path,
        args: Sequence[str],
        environment: Mapping[str, str],
        options: ChildOptions,
        max_restarts: int,
        streams: Streams,
    ) -> None:
        self._script = script
        self._args = args
        # Python's own random order of sets: the same when the run goes on.
        hash_seed = str((options.seed or 0) % 2**32)
        self._environment = {
            **({} if "PYTHONHASHSEED" in os.environ else {"PYTHONHASHSEED": hash_seed}),
            **environment,
        }
        self._options = options
        self._streams = streams
        self._restarts = Restarts(max_restarts)
        self._input_start = _offset(0)

    def run(self, *, goes_on: bool) -> int:
        """Run until the script has ended, or has died of something that can't be helped."""
        if goes_on:
            self.note(Restarted())
        else:
            self.note(RunStarted(script=str(self._script), arguments=tuple(self._args)))
        while True:
            told = self._told()
            errors_start = _offset(2)
            kills = KernelKills()
            code = run_child(
                self._script,
                self._args,
                environment=self._environment,
                options=dataclasses.replace(
                    self._options, barred=self._restarts.plan(), lean=self._restarts.lean
                ),
                every_second=kills.look,
                stdout=self._streams.stdout,
                stderr=self._streams.stderr,
            )
            events = self._events()[told:]
            death = read_death(
                code,
                events,
                kernel_kills=kills.just_now(),
                last_lines=_written(2, errors_start) if code < 0 else "",
            )
            if not death.memory or not self._goes_again(death):
                return code

    def _goes_again(self, death: Death) -> bool:
        refusal = self._restarts.answer(death)
        if refusal is not None:
            say(f"the script died of memory: {death.why}. {refusal}.", colour="31")
            return False
        smaller = self._restarts.barred.get((death.training, death.subject))
        how = f"with slices of less than {smaller}" if smaller else "with less read ahead"
        text = f"the script died of memory: {death.why}. It is started again {how}"
        say(text, colour="33")
        self.note(Restarted(text, slice_size=death.slice_size, signal=-death.code))
        self._rewind_input()
        return True

    def _rewind_input(self) -> None:
        """Have the next child read its input from where the first one did, if that can be."""
        if self._input_start is not None:
            with contextlib.suppress(OSError):
                os.lseek(0, self._input_start, os.SEEK_SET)
        elif _is_pipe(0):
            say(
                "its input is a pipe: what the script has read of it is gone, and if it needs it "
                "again it must be started by hand",
                colour="33",
            )

    def _events(self) -> list[Event]:
        return [] if self._options.journal is None else read_journal(self._options.journal)

    def _told(self) -> int:
        return len(self._events())

    def note(self, event: Event) -> None:
        """Write an event of the supervisor's own into the journal."""
        if self._options.journal is not None:
            with contextlib.suppress(OSError):
                journal = Journal(self._options.journal)
                journal(event)
                journal.close()


def _say_where(place: Place, code: int) -> None:
    """After an end that was none: how to go on."""
    if code != 0 and place.folder is not None and place.folder.has_snapshots():
        say(f"the state of the run is saved in {place.folder.path}: run the same command to resume")


def _offset(handle: int) -> int | None:
    """Where a stream that is a file stands; None for others."""
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return os.lseek(handle, 0, os.SEEK_CUR)
    except OSError:
        pass
    return None


def _is_pipe(handle: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(handle).st_mode)
    except OSError:
        return False


def _written(handle: int, start: int | None) -> str:
    """The end of what was written to a stream that is a file; empty for others."""
    if start is None or sys.platform != "linux":
        return ""
    try:
        with open(f"/proc/self/fd/{handle}", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start if start <= size else 0, size - _LAST_LINES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
