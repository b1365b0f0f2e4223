"""Trials as tasks of Ray: on the machines of a cluster, each as much as it has memory for.

A task starts the trial's own process on its machine, with the same cap and the same guard as
everywhere, and looks after it. Ray places it by the memory that the trial will need, and starts it
again when a worker dies or a machine is lost; the trial then goes on from its last snapshot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.units import parse_size
from legroom.sweeps.keeping.folder import SweepFolder
from legroom.sweeps.keeping.mirror import MirroredFolder
from legroom.sweeps.local import Engine
from legroom.sweeps.opening import OpenSweep, Place, Settings, opened
from legroom.sweeps.trials.process import shared_file
from legroom.sweeps.trials.trial import Trial
from legroom.sweeps.trials.trial_run import Carried, Job, TrialRun
from legroom.sweeps.trials.verdicts import Again

__all__ = ["RayRun", "opened_on_ray"]

_LOOK_EVERY = 0.1
_SHARE_EVERY = 2.0
_STOP_SECONDS = 8.5
# How often Ray starts a task again whose worker or machine was lost.
_RETRIES = 10
# What a process holds beside what is capped, as Ray is told.
_OVERHEAD = 600 * 2**20
_PASSED_ON = ("KERAS_BACKEND", "LEGROOM_DISABLE", "TF_CPP_MIN_LOG_LEVEL", "PYTHONHASHSEED")


@dataclasses.dataclass(frozen=True)
class _Order:
    """What a task is to do."""

    job: Job
    number: int
    config: Any
    folder: str
    cap: int
    threads: int
    tried: bool
    carried: Carried | None
    environment: dict[str, str]


@contextlib.contextmanager
def opened_on_ray(
    train: Callable[[Any], Any], settings: Settings
) -> Iterator[tuple[OpenSweep, Engine]]:
    """Open a sweep on a cluster, and close it in the end.

    Raises:
        LegroomError: If there is no Ray here.
    """
    try:
        import ray
    except ImportError:
        raise LegroomError(
            'engine="ray" needs Ray: pip install "legroom[ray]". Without it, engine="local" uses '
            "all of this machine."
        ) from None
    started = not ray.is_initialized()
    if started:
        # Connects to RAY_ADDRESS where that is set; else a cluster of this machine is started.
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="warning")
    try:
        with opened(train, settings, _cluster(ray, settings)) as sweep:
            function = ray.put(_contents(sweep.job.function))
            gpu_bytes = sweep.job.memory if sweep.on_gpu else None

            def make(number: int, config: Any) -> RayRun:
                return RayRun(ray, sweep, number, config, function, gpu_bytes)

            yield sweep, Engine(sweep, make)
    finally:
        if started:
            ray.shutdown()


def _cluster(ray: Any, settings: Settings) -> Place:
    """What the cluster has.

    Raises:
        BadBudgetError: If the memory can't be read.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    able = [node for node in nodes if node.get("CPU", 0) >= 1] or nodes
    cores = int(max(node.get("CPU", 1) for node in able))
    gpus = int(sum(node.get("GPU", 0) for node in able))
    if gpus:
        asked = ray.remote(num_gpus=0.01, num_cpus=0)(_gpu_bytes)
        most = ray.get(asked.remote())
        whole, workers = gpus * most, int(sum(node.get("CPU", 1) for node in able))
    else:
        most = int(max(node.get("memory", 0) for node in able)) - _OVERHEAD
        whole = int(sum(node.get("memory", 0) for node in able))
        workers = int(sum(node.get("CPU", 0) for node in able))
    memory = whole if settings.memory is None else parse_size(settings.memory, whole=whole)
    return Place(memory, min(memory, most), max(1, workers), max(1, cores), gpus > 0)


def _gpu_bytes() -> int:
    from legroom.machine.memory import device_total

    return device_total()


def _contents(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


class RayRun:
    """A trial on its way, in a task of Ray's. As `TrialRun` is to the engine.

    Args:
        ray: Ray.
        sweep: What all trials have in common.
        number: Its place among the configs.
        config: Its config.
        function: What it trains, as Ray keeps it.
        gpu_bytes: The memory of a GPU, where trials train on them.
    """

    def __init__(
        self,
        ray: Any,
        sweep: OpenSweep,
        number: int,
        config: Any,
        function: Any,
        gpu_bytes: int | None,
    ) -> None:
        self.number = number
        self.config = config
        self.cap = 0
        self.carried: Any = None
        self._ray = ray
        self._sweep = sweep
        self._function = function
        self._gpu_bytes = gpu_bytes
        self._task: Any = None
        self._began = 0.0
        self._job = dataclasses.replace(sweep.job, function=-1)
        self._folder = sweep.folder.where

    def start(self, cap: int, threads: int, *, tried: bool = False) -> None:
        """Hand it to Ray, which starts it where there is room."""
        self.cap = cap
        needs: dict[str, Any] = {"num_cpus": threads, "memory": _OVERHEAD}
        if self._gpu_bytes is None:
            needs["memory"] += cap
        else:
            needs["num_gpus"] = min(1.0, round(cap / self._gpu_bytes + 5e-5, 4))
        task = self._ray.remote(max_retries=_RETRIES, **needs)(_run_trial)
        order = _Order(
            self._job,
            self.number,
            self.config,
            self._folder,
            cap,
            threads,
            tried,
            self.carried,
            {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
        try:
            self._task = task.options(name=f"trial {self.number}").remote(order, self._function)
        except (TypeError, ValueError) as error:
            raise LegroomError(f"Its config can't be sent to another machine: {error}") from error
        self._began = time.monotonic()

    def look(self) -> Trial | Again | None:
        """How the trial has ended; or that it is to be queued again; None while it runs."""
        done, _ = self._ray.wait([self._task], timeout=0)
        if not done:
            return None
        task, self._task = self._task, None
        try:
            ending, self.carried = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            # Of an error in a task Ray tells the traceback, of its own what they mean first.
            raised = isinstance(error, self._ray.exceptions.RayTaskError)
            return self._failed(f"Ray gave it up: {lines[-1 if raised else 0]}")
        if isinstance(ending, Trial):
            return dataclasses.replace(ending, config=self.config, folder=self._trial_folder())
        answer: Again = ending
        return answer

    def could_not_start(self, error: OSError | LegroomError) -> Trial:
        """The trial, if it can't be handed over."""
        return self._failed(str(error))

    def stop(self) -> None:
        """Ask its task to end it."""
        if self._task is not None:
            self._ray.cancel(self._task, force=False)

    def give_up(self, seconds: float) -> None:
        """Wait for the end of its task, so long and no longer."""
        if self._task is not None:
            self._ray.wait([self._task], timeout=seconds or 0.01)
            self._task = None

    @property
    def place(self) -> str:
        """How far it is, in a few words."""
        return "with Ray"

    @property
    def seconds(self) -> float:
        """How long Ray has had it."""
        return time.monotonic() - self._began

    @property
    def resident_bytes(self) -> int:
        """Nothing of this machine's memory, as far as is known."""
        return 0

    def _failed(self, why: str) -> Trial:
        return Trial(
            self.number,
            self.config,
            "failed",
            error=why,
            cap_bytes=self.cap,
            folder=self._trial_folder(),
        )

    def _trial_folder(self) -> str:
        folder = self._sweep.folder
        name = folder.trial(self.number).relative_to(folder.path)
        return posixpath.join(self._folder, name.as_posix())


def _run_trial(order: _Order, function: bytes) -> tuple[Trial | Again, Carried]:
    """Run a trial on this machine. This is what Ray's worker does."""
    os.environ.update(order.environment)
    job = dataclasses.replace(
        order.job,
        function=shared_file(function),
        path=tuple(dict.fromkeys((*sys.path, *order.job.path))),
    )
    mirror = MirroredFolder(order.folder) if "://" in order.folder else None
    folder = mirror or SweepFolder(Path(order.folder))
    run = TrialRun(job, order.number, order.config, folder, order.carried)
    try:
        while True:
            run.start(order.cap, order.threads, tried=order.tried)
            ending = _ended(run, mirror)
            if isinstance(ending, Again) and ending.need_bytes is None:
                continue  # here, and with the same memory
            if isinstance(ending, Trial):
                ending = dataclasses.replace(ending, where=socket.gethostname(), config=None)
            return ending, run.carried
    finally:
        run.stop()
        run.give_up(_STOP_SECONDS)
        if mirror is not None:
            mirror.share(order.number)
        os.close(job.function)


def _ended(run: TrialRun, mirror: MirroredFolder | None) -> Trial | Again:
    """Look after a trial until its process has ended."""
    shared = time.monotonic()
    while (ending := run.look()) is None:
        time.sleep(_LOOK_EVERY)
        if mirror is not None and time.monotonic() - shared > _SHARE_EVERY:
            mirror.share(run.number)
            shared = time.monotonic()
    return ending
