"""The process of one trial, from the outside: started, watched, stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.events import Event
from legroom.core.records import Record
from legroom.machine.kills import KernelKills
from legroom.report.journal import JournalTail
from legroom.supervisor.options import ChildOptions
from legroom.sweeps.trials.trial import Answer
from legroom.sweeps.trials.verdicts import Ending

__all__ = ["TrialOptions", "TrialProcess", "pickled", "shared_file"]

_LAST_LINES = 2**14  # bytes
_LOOK_EVERY = 1.0


@dataclasses.dataclass(frozen=True)
class TrialOptions(Record):
    """The argument of `legroom.sweeps.trials.child`, as JSON.

    Attributes:
        child: As for every process that is supervised.
        path: The module path.
        parent: The process that ends with this one.
        function: The file that `train` is in, pickled.
        config: The file that its config is in.
        answer: The file that the answer goes to.
        cap: The cap in bytes, if there is one.
        may_ask: Whether a larger one can be had.
        script_folder: Where the modules are whose code is part of what is trained.
    """

    child: ChildOptions
    path: tuple[str, ...]
    parent: int
    function: int
    config: int
    answer: int
    cap: int | None = None
    may_ask: bool = False
    script_folder: str | None = None


def pickled(value: Any, what: str) -> bytes:
    """A function or a config as it is sent to another process.

    Raises:
        LegroomError: If it can't be.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise LegroomError(
            f"{what} can't be sent to another process: {error}. Have `train` make what it needs "
            "(data, data sets, strategies) itself, from names and numbers in its config."
        ) from error


def shared_file(data: bytes = b"") -> int:
    """A file without a name, to hand something to another process."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("legroom", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    return handle


class TrialProcess:
    """A trial that runs.

    Args:
        options: What the child is told; `config` is closed here, `function` stays open.
        environment: Variables that it has beside this process's.
        log: The file for what it prints.
        time_limit: Seconds after which it is ended.

    Attributes:
        events: What its journal has told since it was started.
        started: When, by `time.monotonic`.
    """

    def __init__(
        self,
        options: TrialOptions,
        environment: Mapping[str, str],
        log: Path,
        time_limit: float | None = None,
    ) -> None:
        self._time_limit = time_limit
        self._log = log
        self._answer = options.answer
        self._kills = KernelKills()
        self._looked = time.monotonic()
        self._timed_out = False
        assert options.child.journal is not None
        self._tail = JournalTail(options.child.journal)
        self._tail.new_events()  # of an earlier start
        self.events: list[Event] = []
        self.started = time.monotonic()
        with open(log, "a+b") as output:  # a script reads its own output
            self._log_start = output.tell()
            # A session of its own: Ctrl-C is for the sweep, which stops its trials in order. And
            # no function between fork and exec, because this process may have many threads.
            self._child = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("child.py")), options.to_json()],
                env={**os.environ, **environment},
                pass_fds=(options.function, options.config, options.answer),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(options.config)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    def look(self) -> Ending | None:
        """Read what it has told; how it ended, if it has."""
        code = self._child.poll()
        self.events += self._tail.new_events()
        if code is None:
            if time.monotonic() - self._looked > _LOOK_EVERY:
                self._looked = time.monotonic()
                self._kills.look()
            if self._time_limit is not None and self.seconds > self._time_limit:
                self._timed_out = True
                self.kill()
            return None
        self._kill_group()  # whatever it has started and left behind
        answer = self._read_answer()
        well = code == 0 or (answer is not None and answer.outcome == "returned")
        return Ending(
            code,
            answer=answer,
            events=self.events,
            kernel_kills=self._kills.just_now() if code == -signal.SIGKILL else 0,
            last_lines="" if well else self._last_lines(),
            timed_out=self._time_limit if self._timed_out else None,
        )

    def stop(self) -> None:
        """Ask it to keep what it has in a snapshot, and to end."""
        with contextlib.suppress(OSError):
            self._child.terminate()

    def kill(self) -> None:
        """End it, and all that it has started."""
        self._kill_group()
        with contextlib.suppress(OSError):
            self._child.kill()

    def wait(self, seconds: float) -> None:
        """Wait for its end, but not for ever."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)

    def close(self) -> None:
        """Let go of what was open for it; it is ended if it still runs."""
        if self._child.poll() is None:
            self.kill()
            self._child.wait()
        self._kill_group()
        with contextlib.suppress(OSError):
            os.close(self._answer)

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _read_answer(self) -> Answer | None:
        size = os.fstat(self._answer).st_size
        try:
            return Answer.from_json(os.pread(self._answer, size, 0).decode())
        except ValueError:
            return None  # it died before, or while it wrote

    def _last_lines(self) -> str:
        with contextlib.suppress(OSError), open(self._log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _LAST_LINES))
            return file.read().decode(errors="replace")
        return ""
