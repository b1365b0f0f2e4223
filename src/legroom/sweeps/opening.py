"""A sweep opened: its memory, its function and its folder, and who is told what happens."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legroom.core.events import Note, emit, has_listener, listening
from legroom.core.units import MEMORY_VARIABLE, parse_size
from legroom.machine.host import usable_cores
from legroom.report.journal import Journal
from legroom.report.screen.sweep_table import SweepPicture
from legroom.sweeps.keeping.code import code_of_function
from legroom.sweeps.keeping.folder import SweepFolder, SweepIdentity
from legroom.sweeps.packing.needs import SMALLEST_CAP
from legroom.sweeps.trials.process import pickled, shared_file
from legroom.sweeps.trials.trial_run import Job

__all__ = ["OpenSweep", "Place", "Settings", "opened"]

_OF_THE_HOST = 0.8


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a user says of a sweep, as in `legroom.sweep`.

    Attributes:
        memory: The device memory that all trials share.
        workers: How many run at once, at most.
        folder: Where all of it is kept.
        time_limit: Seconds after which a trial is ended.
        exact: Never slice what slices would change.
        seed: What the seeds of the trials are made of.
        name: What the sweep is called; the name of the function by default.
    """

    memory: str | int | None = None
    workers: int | None = None
    folder: str | os.PathLike[str] | None = None
    time_limit: float | None = None
    exact: bool = False
    seed: int = 0
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """Where trials run.

    Attributes:
        memory: The device memory that all of them share.
        most: The most that one can get.
        workers: How many run at once, at most, if the user does not say.
        cores: The cores of the machine, or of each.
        on_gpu: Whether they train on GPUs.
    """

    memory: int
    most: int
    workers: int
    cores: int
    on_gpu: bool


@dataclasses.dataclass
class OpenSweep:
    """A sweep that is open.

    Attributes:
        job: What its trials have in common.
        folder: Its folder.
        memory: What its trials share.
        workers: How many run at once, at most.
        cores: The cores of the machine, or of each, that its trials compute on.
        on_gpu: Whether they train on a GPU.
        show: Shown the sweep now and then.
        ended: Whether all of its trials have ended; to be set.
    """

    job: Job
    folder: SweepFolder
    memory: int
    workers: int
    cores: int
    on_gpu: bool
    show: Callable[[SweepPicture], None]
    ended: bool = False


@contextlib.contextmanager
def opened(
    train: Callable[[Any], Any], settings: Settings, place: Place | None = None
) -> Iterator[OpenSweep]:
    """Open a sweep, and close it in the end.

    Args:
        train: The training.
        settings: What the user says of it.
        place: Where it runs; this machine by default.

    Raises:
        BadBudgetError: If the memory can't be read, or is too little to train in.
        LegroomError: If the function can't be sent to another process.
        SnapshotError: If another sweep works in the folder.
    """
    place = place or _machine(settings)
    name = settings.name or getattr(train, "__qualname__", None) or type(train).__name__
    identity = SweepIdentity(name, code_of_function(train), settings.seed)
    folder = _folder(settings.folder, name)
    with contextlib.ExitStack() as stack:
        function = shared_file(pickled(train, name))
        stack.callback(os.close, function)
        show = stack.enter_context(_shown())
        job = Job(
            function,
            settings.seed,
            place.most,
            settings.exact,
            settings.time_limit,
            _script_folder(),
        )
        workers = settings.workers or place.workers
        sweep = OpenSweep(job, folder, place.memory, workers, place.cores, place.on_gpu, show)
        aside = folder.open(identity)
        stack.callback(lambda: folder.close(identity, ended=sweep.ended))
        with contextlib.suppress(OSError):  # a full disk
            journal = Journal(folder.journal)
            stack.callback(journal.close)
            stack.enter_context(listening(journal))
        if aside is not None:
            emit(
                Note(
                    f"another sweep was interrupted in {folder.path} ({aside.name}, or its code "
                    f"was edited since): what it had is now in {folder.path / 'previous'}"
                )
            )
        yield sweep


def _machine(settings: Settings) -> Place:
    """This machine.

    Raises:
        BadBudgetError: If the memory can't be read, or is too little to train in.
    """
    memory = settings.memory
    from legroom.backends.base import current
    from legroom.machine.memory import device_limit, host_available

    caps = current().caps
    on_gpu = caps.uses_gpu()
    capped = os.environ.get(MEMORY_VARIABLE, "")
    if memory is not None:
        budget = parse_size(memory, whole=caps.whole_bytes())
    elif capped.isdigit():  # by `legroom run --memory`
        budget = int(capped)
    else:
        budget = device_limit() if on_gpu else int(host_available() * _OF_THE_HOST)
    caps.cap_environment(min(budget, SMALLEST_CAP))  # raises, if nothing can train in so little
    cores = usable_cores()
    return Place(budget, budget, cores, cores, on_gpu)


def _folder(given: str | os.PathLike[str] | None, name: str) -> SweepFolder:
    if given is None:
        return SweepFolder(_default_folder(name))
    if "://" in str(given):
        from legroom.sweeps.keeping.mirror import MirroredFolder

        return MirroredFolder(str(given))
    return SweepFolder(Path(given))


def _default_folder(name: str) -> Path:
    words = "".join(letter if letter.isalnum() or letter in "_-." else "-" for letter in name)
    return Path(_script_folder() or Path.cwd()) / ".legroom" / f"sweep-{words.strip('-')}"


def _script_folder() -> str | None:
    """The folder of the script that is run; None in a notebook, or at a prompt."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if main is None else os.path.dirname(os.path.realpath(main))


@contextlib.contextmanager
def _shown() -> Iterator[Callable[..., None]]:
    """Have the sweep told: as a table in a terminal, else in lines."""
    from legroom.report.screen.area import can_draw_on
    from legroom.report.screen.lines import LiveLines
    from legroom.report.screen.sweep_table import SweepTable

    if has_listener(LiveLines):
        yield lambda picture: None
    elif can_draw_on(sys.stderr):
        table = SweepTable()
        try:
            with listening(table):
                yield table.show
        finally:
            table.close()
    else:
        with listening(LiveLines()):
            yield lambda picture: None
