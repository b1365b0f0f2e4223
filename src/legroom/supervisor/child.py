"""The child process of ``legroom run``: the user's script as ``__main__``, with Keras guarded.

Run as a file, by `legroom.supervisor.process`. The script must not be able to tell that it is
not plain Python that runs it: its ``__main__`` module, ``sys.argv``, ``sys.path``, exit code and
tracebacks are what they would be.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.core.errors import CannotFitError
    from legroom.core.events import Event
    from legroom.supervisor.options import ChildOptions

__all__ = ["main"]

_CANNOT_FIT = 3


def main() -> None:
    """Run the script named in ``sys.argv[2]``; ``sys.argv[1]`` are the options from the parent."""
    _, options, *script_argv = sys.argv
    _import_legroom()
    _guard(options)
    _run(script_argv)


def _import_legroom() -> None:
    """Import the very package that this file is part of, wherever it lies.

    The module path may not lead to it (the parent was started from a source folder), or lead to
    another one, and is the script's: it is not to be changed.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "legroom", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["legroom"] = module
    spec.loader.exec_module(module)


def _guard(options_json: str) -> None:
    """Start listening to events, and have Keras guarded when, and if, the script imports it."""
    from legroom.core.events import listening
    from legroom.guarding import install_when_imported
    from legroom.report.journal import Journal
    from legroom.report.screen.lines import LiveLines
    from legroom.supervisor.options import ChildOptions

    options = ChildOptions.from_json(options_json)
    _send_receipts(options)
    # Closed by atexit, the last of all its callbacks, because a script may still be training in
    # other threads when its last line is done.
    listeners = contextlib.ExitStack()
    atexit.register(listeners.close)
    listeners.enter_context(listening(LiveLines()))
    if options.journal is not None:
        with contextlib.suppress(OSError):  # a report is missed; the training is not
            listeners.enter_context(listening(Journal(options.journal)))
            # Only with a journal does the parent know why, and start the script again.
            listeners.enter_context(listening(_end_if_broken))
    if options.folder is not None:
        listeners.enter_context(_snapshots(options))
    if options.report:
        from legroom.guarding.showing.foresight import foresight

        foresight.wanted = True
    install_when_imported(exact=options.exact)


def _end_if_broken(event: Event) -> None:
    """End the process where running out of memory has broken it, before it computes any more."""
    from legroom.core.events import RanOut

    if isinstance(event, RanOut) and event.broken:
        sys.stdout.flush()
        os.abort()


@contextlib.contextmanager
def _snapshots(options: ChildOptions) -> Iterator[None]:
    """Have trainings kept in snapshots, and random numbers begin as they did before.

    A script that does not seed them gets new ones in each run, but the same when a run goes on:
    its data and its first weights must be those of the snapshot.
    """
    import random

    from legroom.guarding.importing import after_import

    script = os.path.dirname(os.path.realpath(sys.argv[2]))
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
        from pathlib import Path

        from legroom.snapshots.folder import RunFolder
        from legroom.snapshots.run import SnapshotRun, running

        assert options.folder is not None
        run = SnapshotRun(
            RunFolder(options.folder),
            every=options.snapshot_every,
            seed=options.seed,
            barred={(bar.training, bar.subject): bar.slice_size for bar in options.barred},
            lean=options.lean,
            script_folder=Path(script),
        )
        listeners.enter_context(running(run))

    def seed_shuffles(module: types.ModuleType) -> None:
        from legroom.backends.base import named

        named(module.__name__).shuffles.seed_shuffles(options.seed or 0)

    after_import("numpy.random", seed_numpy)
    for framework in ("tensorflow", "torch"):
        after_import(framework, seed_shuffles)
    for trains in ("keras", "torch"):
        after_import(trains, keep)
    with listeners:
        yield


def _send_receipts(options: ChildOptions) -> None:
    """Have Python's signal handling tell the parent what arrives here (see signals.py)."""
    os.set_inheritable(options.receipts, False)
    os.set_blocking(options.receipts, False)
    signal.set_wakeup_fd(options.receipts, warn_on_full_buffer=False)


def _run(script_argv: list[str]) -> None:
    """Run the script, and end as plain Python would."""
    from legroom.core.errors import CannotFitError
    from legroom.core.process.main_script import run_as_main

    try:
        run_as_main(script_argv)
    except SystemExit:
        raise
    except CannotFitError as error:
        from legroom.report.screen.lines import say

        say(str(error), colour="31")
        _advise(error)
        # Left by SystemExit and not by os._exit: the script's atexit functions still run.
        raise SystemExit(_CANNOT_FIT) from None
    except BaseException:
        # Python itself shows it and chooses the exit code, so that Ctrl-C stays a death by
        # SIGINT; only the frames above the script are taken out.
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise


def _without_our_frames(show: Callable[..., Any]) -> Callable[..., None]:
    """An excepthook that hides the frames above the script's own, which plain Python has not."""
    from legroom.core.process.main_script import from_script_on

    def hook(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        traceback = from_script_on(traceback)
        show(kind, error.with_traceback(traceback), traceback)
        if isinstance(error, Exception):  # Ctrl-C has nothing to explain, and must end as it does
            _explain(error)

    return hook


def _explain(error: BaseException) -> None:
    """After the traceback of an error of memory: what it means, and how legroom could help."""
    # A script that only runs out of disk, or imports nothing of this size, gets its own words only.
    with contextlib.suppress(Exception):
        from legroom.core.units import format_bytes
        from legroom.messages import diagnose_exception
        from legroom.planning.explain import explain_with_models
        from legroom.report.diagnosis import print_diagnosis
        from legroom.report.screen.lines import say

        if not diagnose_exception(error).is_oom:
            return
        cap = os.environ.get("LEGROOM_MEMORY")
        limit = f" (it is capped at {format_bytes(int(cap))})" if cap else ""
        say(
            f"memory ran out{limit} in code that legroom does not run in slices: a loop written "
            "out step by step, or something outside of a training. To have a step guarded, put "
            "it into a function and write @legroom.step above it:\n"
            "    @legroom.step\n"
            "    def train_step(x, y): ...",
            colour="31",
        )
        diagnosis = explain_with_models(error, _models(error))
        # This is `legroom run` already: it is no remedy here.
        others = [remedy for remedy in diagnosis.remedies if "legroom run" not in str(remedy)]
        print_diagnosis(dataclasses.replace(diagnosis, remedies=tuple(others)), sys.stderr)


def _advise(error: CannotFitError) -> None:
    """After legroom gave up: what a step of the model needs, and what would save how much."""
    with contextlib.suppress(Exception):
        from legroom.planning.explain import advise_to_fit
        from legroom.report.diagnosis import print_diagnosis

        diagnosis = advise_to_fit(_models(error), error.budget_bytes)
        if diagnosis is not None:
            print_diagnosis(diagnosis, sys.stderr)


def _models(error: BaseException) -> list[Any]:
    """The Keras models that were at hand where an error came from, the innermost first."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    found: dict[int, Any] = {}
    frames: list[types.FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        for value in list(frame.f_locals.values()):
            if isinstance(value, keras.Model):
                found.setdefault(id(value), value)
    return list(found.values())


if __name__ == "__main__":
    main()
