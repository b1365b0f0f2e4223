"""A process that is supervised, from the inside: guarded, kept in snapshots, with a journal."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from legroom.core.events import Event, RanOut, listening
from legroom.core.events.sink import Listener
from legroom.guarding import install_when_imported
from legroom.report.journal import Journal
from legroom.report.screen.lines import LiveLines
from legroom.supervisor.options import ChildOptions

__all__ = ["guard_process"]


def guard_process(
    options: ChildOptions, script_folder: str | None = None, listeners: Sequence[Listener] = ()
) -> None:
    """Start listening to events, and have Keras guarded when, and if, it is imported.

    Args:
        options: What the parent said.
        script_folder: Where the modules are whose code is part of what is trained.
        listeners: Who else is told of events, after the journal has them.
    """
    # Closed by atexit, the last of all its callbacks, because a script may still be training in
    # other threads when its last line is done.
    open_listeners = contextlib.ExitStack()
    atexit.register(open_listeners.close)
    open_listeners.enter_context(listening(LiveLines()))
    if options.journal is not None:
        with contextlib.suppress(OSError):  # a report is missed; the training is not
            open_listeners.enter_context(listening(Journal(options.journal)))
            # Only with a journal does the parent know why, and start the process again.
            for listener in (_end_if_broken, *listeners):
                open_listeners.enter_context(listening(listener))
    if options.folder is not None:
        open_listeners.enter_context(_snapshots(options, script_folder))
    if options.report:
        from legroom.guarding.showing.foresight import foresight

        foresight.wanted = True
    install_when_imported(exact=options.exact)


def _end_if_broken(event: Event) -> None:
    """End the process where running out of memory has broken it, before it computes any more."""
    if isinstance(event, RanOut) and event.broken:
        sys.stdout.flush()
        os.abort()


@contextlib.contextmanager
def _snapshots(options: ChildOptions, script_folder: str | None) -> Iterator[None]:
    """Have trainings kept in snapshots, and random numbers begin as they did before.

    A script that does not seed them gets new ones in each run, but the same when a run goes on:
    its data and its first weights must be those of the snapshot.
    """
    import random

    from legroom.guarding.importing import after_import

    listeners = contextlib.ExitStack()
    random.seed(options.seed)

    def seed_numpy(module: types.ModuleType) -> None:
        module.seed((options.seed or 0) % 2**32)

    kept = False

    def keep(module: types.ModuleType) -> None:
        nonlocal kept
        if kept:
            return  # by a plain loop's framework, and Keras came later
        kept = True
        from legroom.snapshots.folder import RunFolder
        from legroom.snapshots.run import SnapshotRun, running

        assert options.folder is not None
        run = SnapshotRun(
            RunFolder(options.folder),
            every=options.snapshot_every,
            seed=options.seed,
            barred={(bar.training, bar.subject): bar.slice_size for bar in options.barred},
            lean=options.lean,
            tried=options.tried,
            script_folder=None if script_folder is None else Path(script_folder),
        )
        listeners.enter_context(running(run))

    def seed_shuffles(module: types.ModuleType) -> None:
        from legroom.backends.base import named

        named(module.__name__).shuffles.seed_shuffles(options.seed or 0)

    after_import("numpy.random", seed_numpy)
    for framework in ("tensorflow", "torch"):
        after_import(framework, seed_shuffles)
    for trains in ("keras", "torch", "jax"):
        after_import(trains, keep)
    with listeners:
        yield
