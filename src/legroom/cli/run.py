"""``legroom run``: an unmodified script, guarded, in a child process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from legroom.backends.base import current
from legroom.cli.script import (
    OPTIONS_END_AT_SCRIPT,
    Script,
    ScriptArguments,
    check_script,
    not_a_script,
)
from legroom.core.disabled import DISABLE_VARIABLE, is_disabled
from legroom.core.errors import BadBudgetError
from legroom.core.units import MEMORY_VARIABLE

__all__ = ["CONTEXT_SETTINGS", "run"]

CONTEXT_SETTINGS = OPTIONS_END_AT_SCRIPT


def run(
    script: Script,
    args: ScriptArguments = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="A hard cap on the device's memory: 8GiB, 8GB, 512MiB, 80%. "
            "Default: all the memory there is.",
            metavar="SIZE",
            envvar=MEMORY_VARIABLE,
            show_envvar=True,
            show_default=False,
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Never slice models that slices would change (BatchNorm, losses that look across "
            "the batch). By default they are sliced, and a message says so.",
        ),
    ] = False,
    keep_onednn: Annotated[
        bool,
        typer.Option(
            "--keep-onednn",
            help="On a CPU, --memory turns oneDNN off, so that running out can be caught. This "
            "keeps it on: about twice as fast, but running out ends the script, which is then "
            "restarted with smaller slices.",
        ),
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help="Where to keep snapshots. Default: a folder in .legroom beside the script, for "
            "the script and its arguments.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    snapshot_every: Annotated[
        float,
        typer.Option(
            help="Seconds between snapshots. One more is taken at the end of each epoch.",
            metavar="SECONDS",
            min=0,
        ),
    ] = 60.0,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start from scratch, even if there is an interrupted run to resume."
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Resume the interrupted run in this folder, even if the script was edited.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            help="How many times a script that ran out of memory is restarted.",
            metavar="N",
            min=0,
        ),
    ] = 10,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the run's report to this file, as JSON.",
            metavar="PATH",
            show_default=False,
            callback=not_a_script,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write a page about the run (report.html) and its data into this folder. The step "
            "is estimated for it, which takes a second or two.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    view: Annotated[
        bool,
        typer.Option(
            "--view",
            help="Show memory, its limit, slices and events in a panel below the script's output. "
            "Needs a terminal.",
        ),
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Serve metrics for Prometheus on this port while the script runs: 9464 (this "
            "machine only) or 0.0.0.0:9464.",
            metavar="[ADDRESS:]PORT",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a training script so that running out of memory does not end it.

    The script is unchanged and can't tell the difference: its arguments, input, output, exit code
    and signals are its own. Every Keras model in it is guarded: a batch that does not fit runs in
    slices and makes the same update. Snapshots keep the state of the training. If the script runs
    out of memory and dies, it is restarted with smaller slices. If it dies for another reason, the
    same command resumes it.

    **Examples**

    `legroom run train.py --epochs 5`

    `legroom run --memory 2GiB --json report.json train.py --batch-size 256`

    **Exit code**: the script's own; 3 if a training can't fit even at one sample at a time; 2 if
    the command can't be understood. If a signal ends the script, the same ends legroom.
    """
    check_script(script)
    if is_disabled():
        _run_plain(script, args or [])
    _check_keras()
    _check_json(json)
    _check_folder(report)
    environment = {} if memory is None else _cap(memory, keep_onednn=keep_onednn)

    if resume is not None and (fresh or directory is not None):
        raise typer.BadParameter(
            "--resume names a run to resume, --fresh starts a new one, and --dir says where. Use "
            "one of them.",
            param_hint="--resume",
        )

    from legroom.supervisor.place import PlaceOptions
    from legroom.supervisor.run import run_script
    from legroom.supervisor.signals import die_by

    with contextlib.ExitStack() as stack:
        streams, followers = None, []
        if metrics is not None:
            from legroom.cli.metrics import serving

            followers.append(stack.enter_context(serving(metrics)).follow)
        if view:
            from legroom.cli.view import viewing

            shown = stack.enter_context(viewing(script))
            streams = shown.streams
            followers.append(shown.follow)
        code = run_script(
            script,
            args or [],
            environment=environment,
            exact=exact,
            json_path=json,
            report_folder=report,
            place=PlaceOptions(folder=directory, fresh=fresh, resume=resume),
            snapshot_every=snapshot_every,
            max_restarts=max_restarts,
            streams=streams,
            followers=followers,
        )
    if report is not None:
        _write_page(report)
    raise typer.Exit(code if code >= 0 else die_by(-code))


def _run_plain(script: Path, args: Sequence[str]) -> NoReturn:
    """Become the Python that runs the script, as if `python` had been typed and not `legroom run`.

    An exec and not a child: nothing of legroom is between the script and who started it.
    """
    from legroom.report.terminal import say

    say(f"{DISABLE_VARIABLE} is set: {script} runs without legroom. Unset it to have it guarded.")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(script), *args])


def _check_keras() -> None:
    # As TensorFlow reads it.
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        raise typer.BadParameter(
            "TF_USE_LEGACY_KERAS is set, so the script would use Keras 2 (tf_keras), which "
            "legroom can't guard. Unset it to use Keras 3, or run the script without legroom.",
            param_hint="TF_USE_LEGACY_KERAS",
        )


def _write_page(folder: Path) -> None:
    from legroom.cli.report import PAGE_NAME, write_page
    from legroom.core.errors import LegroomError
    from legroom.report.reading import read_run
    from legroom.report.terminal import say

    try:
        say(f"the report is in {write_page([read_run(folder)], folder / PAGE_NAME)}")
    except LegroomError as error:
        # The script has run: its exit code is worth more than this.
        say(str(error), colour="31")


def _check_folder(path: Path | None) -> None:
    if path is not None and path.exists() and not path.is_dir():
        raise typer.BadParameter(
            f"{path} is a file. Give a folder; it is made if it is not there.",
            param_hint="--report",
        )


def _check_json(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise typer.BadParameter(
            f"{path} can't be written: it is a folder, or lies in a folder that is not there.",
            param_hint="--json",
        )


def _cap(memory: str, *, keep_onednn: bool) -> dict[str, str]:
    """The child's environment for a hard cap.

    Raises:
        BadBudgetError: If the size can't be read, or no training could run in it on this machine.
    """
    from legroom.core.units import format_bytes, parse_size
    from legroom.machine.memory import device_limit, device_total

    whole = device_total()
    limit = parse_size(memory, whole=device_limit())
    if limit > whole:
        raise BadBudgetError(
            f"A cap of {memory} is more than this machine has, which is {format_bytes(whole)}. "
            "Give less, or leave --memory out to use what there is."
        )
    return current().caps.cap_environment(limit, keep_onednn=keep_onednn)
