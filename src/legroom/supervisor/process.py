"""The child process of ``legroom run``: its start, and that it never outlives its parent."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from legroom.core.events import TrainingFinished, TrainingStarted
from legroom.core.process.lifeline import ends_with_this
from legroom.report.journal import read_journal
from legroom.supervisor.options import ChildOptions
from legroom.supervisor.signals import Receipts, held_signals, wait_and_pass_on

__all__ = ["run_child"]


def run_child(
    script: Path,
    args: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    options: ChildOptions | None = None,
    every_second: Callable[[], None] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> int:
    """Run a script in a child process, guarded, and wait for its end.

    The script's folder, arguments, input and output are its own, and so are the signals that this
    process gets while it waits. If this process dies, so does the child.

    Args:
        script: The script, as the user wrote it.
        args: The script's arguments.
        environment: Variables that the child has beside, or instead of, this process's.
        options: What the child is told beside.
        every_second: Called now and then while the child runs.
        stdout: A file descriptor for the child's output, instead of this process's.
        stderr: The same for its errors.

    Returns:
        The child's exit code, or the negative number of the signal it died by.
    """
    receipts = Receipts()
    told = dataclasses.replace(options or ChildOptions(receipts=-1), receipts=receipts.pipe)
    # By its path and not by `-m`, which would put the current folder on the module path: a
    # `types.py` lying there would be imported by Python itself.
    command = [sys.executable, str(Path(__file__).with_name("child.py"))]
    since = 0 if told.journal is None else len(read_journal(told.journal))
    with held_signals() as held_before:
        child = subprocess.Popen(
            [*command, told.to_json(), str(script), *args],
            env={**os.environ, **(environment or {})},
            pass_fds=(receipts.pipe,),
            preexec_fn=_prepare(held_before),
            stdout=stdout,
            stderr=stderr,
        )
        receipts.listen()
        return wait_and_pass_on(
            child,
            receipts,
            every_second=every_second,
            stops_itself=lambda: told.folder is not None and _trains(told.journal, since),
        )


def _trains(journal: str | None, since: int) -> bool:
    """Whether a training runs in the child, as far as the journal tells."""
    running = 0
    for event in read_journal(journal)[since:] if journal is not None else ():
        if isinstance(event, TrainingStarted):
            running += 1
        elif isinstance(event, TrainingFinished):
            running -= 1
    return running > 0


def _prepare(held_before: frozenset[signal.Signals]) -> Callable[[], None]:
    """What the child does between fork and exec; this process has no other thread at that time."""
    end_with_parent = ends_with_this()

    def prepare() -> None:
        end_with_parent()
        # A signal that comes before the exec would be noted by this copy of the parent, and
        # forgotten with it. With the default action it ends the child, as it would end a Python
        # that is just starting.
        for number in signal.Signals:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)

    return prepare
