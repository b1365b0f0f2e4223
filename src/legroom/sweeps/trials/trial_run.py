"""One trial on its way: started, judged, started again with more memory, until it has ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import LegroomError
from legroom.core.events import EpochStarted, Event, Planned
from legroom.core.process.disabled import is_disabled
from legroom.report.run import RunReport
from legroom.supervisor.options import ChildOptions
from legroom.sweeps.keeping.folder import SweepFolder
from legroom.sweeps.trials.process import TrialOptions, TrialProcess, pickled, shared_file
from legroom.sweeps.trials.trial import Trial, trial_seed
from legroom.sweeps.trials.verdicts import Again, Done, Failed, Verdicts

__all__ = ["Carried", "Job", "TrialRun"]

_SNAPSHOT_EVERY = 30.0
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


@dataclasses.dataclass(frozen=True)
class Job:
    """What all trials of a sweep have in common.

    Attributes:
        function: The file that `train` is in, pickled (see `shared_file`).
        seed: What their seeds are made of.
        memory: The most that a trial can get.
        exact: As in `legroom.guard`.
        time_limit: Seconds after which a trial is ended.
        script_folder: Where the modules are whose code is part of what is trained.
        path: The module path.
    """

    function: int
    seed: int
    memory: int
    exact: bool = False
    time_limit: float | None = None
    script_folder: str | None = None
    path: tuple[str, ...] = dataclasses.field(default_factory=lambda: tuple(sys.path))


@dataclasses.dataclass
class Carried:
    """What a trial takes along from one start to the next, and from one machine to another.

    Attributes:
        verdicts: What its earlier processes died of.
        starts: How often it was started.
        seconds: How long it has run, without the process that runs now.
        peak: The most device memory that it had in use.
        host_peak: The most main memory that its process held.
    """

    verdicts: Verdicts
    starts: int = 0
    seconds: float = 0.0
    peak: int | None = None
    host_peak: int = 0


class TrialRun:
    """A trial on its way.

    Args:
        job: What all have in common.
        number: Its place among the configs.
        config: Its config.
        folder: The sweep's folder.
        carried: What it takes along from where it ran before.

    Attributes:
        cap: The cap that it runs with.
        carried: What it would take along now.
        events: What its process has told since it was started.
        began: When that was, in seconds since the epoch.
        process: Its process, while one runs.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        config: Any,
        folder: SweepFolder,
        carried: Carried | None = None,
    ) -> None:
        self.number = number
        self.config = config
        self.cap = 0
        self.carried = carried or Carried(Verdicts(job.memory, unsure=_runs_out_any_way()))
        self.events: list[Event] = []
        self.began = 0.0
        self.process: TrialProcess | None = None
        self._job = job
        self._folder = folder
        self._seed = trial_seed(job.seed, number)

    def start(self, cap: int, threads: int, *, tried: bool = False) -> None:
        """Start its process.

        Args:
            cap: The most device memory that it may take.
            threads: How many it computes with.
            tried: Whether a trial like it has run in as much.

        Raises:
            OSError: If it can't be started, as on a full disk.
            LegroomError: If its config can't be sent.
        """
        config = pickled(self.config, "Its config")
        self._folder.begin(self.number, self.config, self._seed)
        folder = self._folder.trial(self.number)
        self.cap = cap
        limit = self._job.time_limit
        options = TrialOptions(
            child=ChildOptions(
                receipts=-1,
                journal=str(folder / "journal.jsonl"),
                exact=self._job.exact,
                folder=str(self._folder.snapshots(self.number)),
                snapshot_every=_SNAPSHOT_EVERY,
                seed=self._seed,
                barred=self.carried.verdicts.barred,
                lean=self.carried.verdicts.lean,
                tried=tried,
            ),
            path=self._job.path,
            parent=os.getpid(),
            function=self._job.function,
            config=shared_file(config),
            answer=shared_file(),
            cap=None if is_disabled() else cap,
            may_ask=cap < self._job.memory,
            script_folder=self._job.script_folder,
        )
        self.began = time.time()
        self.process = TrialProcess(
            options,
            _environment(cap, threads, self._seed, careful=self.carried.verdicts.careful),
            folder / "log.txt",
            None if limit is None else max(1.0, limit - self.carried.seconds),
        )
        self.events = self.process.events
        self.carried.starts += 1

    def look(self) -> Trial | Again | None:
        """How the trial has ended; or that it is to be queued again; None while it runs."""
        assert self.process is not None
        ending = self.process.look()
        if ending is None:
            return None
        self._note()
        if ending.answer is not None:
            self.carried.host_peak = max(self.carried.host_peak, ending.answer.host_peak)
        self._leave()
        if ending.timed_out is not None:
            ending = dataclasses.replace(ending, timed_out=self._job.time_limit)
        verdict = self.carried.verdicts.judge(ending, self.cap)
        if isinstance(verdict, Done):
            return self._ended("finished", result=verdict.answer.result)
        if isinstance(verdict, Failed):
            return self._ended(verdict.status, error=verdict.why)
        return verdict

    def could_not_start(self, error: OSError | LegroomError) -> Trial:
        """The trial, if its process can't be started."""
        text = str(error)
        if isinstance(error, OSError):
            reason = error.strerror or text
            text = f"It could not be started: {reason}. Put that right, and run the sweep again."
        return self._ended("failed", error=text)

    def stop(self) -> None:
        """Ask its process to keep what it has, and to end."""
        if self.process is not None:
            self.process.stop()

    def give_up(self, seconds: float) -> None:
        """Wait for the end of its process, so long and no longer."""
        if self.process is not None:
            self.process.wait(seconds)
            self._leave()

    @property
    def place(self) -> str:
        """How far it is, in a few words."""
        if self.process is None:
            return "waiting"
        epoch = sliced = None
        for event in reversed(self.events):
            if isinstance(event, EpochStarted) and epoch is None:
                epoch = event
            elif isinstance(event, Planned) and event.of_training and sliced is None:
                sliced = event
        if epoch is None:
            return "starting" if sliced is None else "training"
        of = f" of {epoch.epochs}" if epoch.epochs else ""
        slices = f", {sliced.slices} slices" if sliced is not None and sliced.slices > 1 else ""
        return f"epoch {epoch.epoch + 1}{of}{slices}"

    @property
    def resident_bytes(self) -> int:
        """The main memory that its process holds now."""
        import psutil

        with contextlib.suppress(psutil.Error):
            if self.process is not None:
                return int(psutil.Process(self.process.pid).memory_info().rss)
        return 0

    @property
    def seconds(self) -> float:
        """How long it has run, all of its starts together."""
        return self.carried.seconds + (0.0 if self.process is None else self.process.seconds)

    def _note(self) -> None:
        """Keep what is to be known of a process that has ended."""
        assert self.process is not None
        report = RunReport.from_events(self.events)
        if report.peak_bytes is not None:
            self.carried.peak = max(self.carried.peak or 0, report.peak_bytes)

    def _leave(self) -> None:
        assert self.process is not None
        self.carried.seconds += self.process.seconds
        self.process.close()
        self.process = None

    def _ended(self, status: Any, *, result: Any = None, error: str = "") -> Trial:
        return Trial(
            number=self.number,
            config=self.config,
            status=status,
            result=result,
            error=error,
            seconds=round(self.carried.seconds, 3),
            peak_bytes=self.carried.peak,
            cap_bytes=self.cap,
            starts=self.carried.starts,
            seed=self._seed,
            folder=str(self._folder.trial(self.number)),
        )


def _runs_out_any_way() -> bool:
    """Whether running out ends a process in any way: oneDNN does so, on a CPU."""
    backend = current()
    return backend.name == "tensorflow" and not backend.caps.uses_gpu() and not is_disabled()


def _environment(cap: int, threads: int, seed: int, *, careful: bool) -> dict[str, str]:
    """The variables of a trial's process."""
    variables = {name: str(threads) for name in _THREADS if name not in os.environ}
    # Python's own random order of sets: the same when the trial goes on.
    if "PYTHONHASHSEED" not in os.environ:
        variables["PYTHONHASHSEED"] = str(seed % 2**32)
    if not is_disabled():
        # With oneDNN a trial is about twice as fast on a CPU. Running out may end its process then,
        # which is answered by starting it again, and at last without oneDNN.
        variables |= current().caps.cap_environment(cap, keep_onednn=not careful)
    return variables
