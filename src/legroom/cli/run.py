"""``legroom run``: an unmodified script, guarded, in a child process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from legroom.cli.command import PATH, Command, check_script, not_a_script, script_arguments
from legroom.core.errors import BadBudgetError
from legroom.core.process.disabled import DISABLE_VARIABLE, is_disabled
from legroom.core.units import MEMORY_VARIABLE

__all__ = ["run"]


@click.command(
    cls=Command,
    runs_script=True,
    examples=(
        "legroom run train.py --epochs 5",
        "legroom run --memory 2GiB --json report.json train.py --batch-size 256",
    ),
    exit_codes="the script's own; 3 if a training can't fit even one sample at a time; 2 if the "
    "command can't be understood.",
)
@script_arguments
@click.option(
    "--memory",
    metavar="SIZE",
    envvar=MEMORY_VARIABLE,
    help=f"Cap the memory: 8GiB, 80%. Or set {MEMORY_VARIABLE}.",
)
@click.option("--exact", is_flag=True, help="Never slice what slices would change (BatchNorm).")
@click.option("--keep-onednn", is_flag=True, help="Keep oneDNN under a cap on a CPU: faster.")
@click.option("--fresh", is_flag=True, help="Start from scratch; do not resume.")
@click.option("--resume", type=PATH, metavar="DIR", help="Resume this run, even if edited.")
@click.option("--dir", "directory", type=PATH, metavar="DIR", help="Where snapshots are kept.")
@click.option(
    "--snapshot-every",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="Time between snapshots.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    show_default=True,
    help="Restarts after running out.",
)
@click.option("--report", type=PATH, metavar="DIR", help="Write a page about the run: report.html.")
@click.option(
    "--json",
    type=PATH,
    metavar="FILE",
    callback=not_a_script,
    help="Write the run's report as JSON.",
)
@click.option("--view", is_flag=True, help="Show memory and events in a live panel.")
@click.option("--metrics", metavar="[ADDRESS:]PORT", help="Serve metrics for Prometheus.")
def run(
    script: Path,
    args: tuple[str, ...],
    memory: str | None,
    exact: bool,
    keep_onednn: bool,
    fresh: bool,
    resume: Path | None,
    directory: Path | None,
    snapshot_every: float,
    max_restarts: int,
    report: Path | None,
    json: Path | None,
    view: bool,
    metrics: str | None,
) -> None:
    """Run a script so that running out of memory does not end it.

    The script needs no change. A batch that does not fit runs in slices and makes the same update.
    If the script dies of memory, it is restarted; if it is killed, the same command resumes it.
    Everything after SCRIPT is the script's own.
    """
    check_script(script)
    if is_disabled():
        _run_plain(script, args)
    _check_keras()
    _check_json(json)
    _check_folder(report)
    environment = {} if memory is None else _cap(memory, keep_onednn=keep_onednn)

    if resume is not None and (fresh or directory is not None):
        raise click.BadParameter(
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
            from legroom.cli.terminal.metrics import serving

            followers.append(stack.enter_context(serving(metrics)).follow)
        if view:
            from legroom.cli.terminal.view import viewing

            shown = stack.enter_context(viewing(script))
            streams = shown.streams
            followers.append(shown.follow)
        code = run_script(
            script,
            args,
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
    sys.exit(code if code >= 0 else die_by(-code))


def _run_plain(script: Path, args: Sequence[str]) -> NoReturn:
    """Become the Python that runs the script, as if `python` had been typed and not `legroom run`.

    An exec and not a child: nothing of legroom is between the script and who started it.
    """
    from legroom.report.screen.lines import say

    say(f"{DISABLE_VARIABLE} is set: {script} runs without legroom. Unset it to have it guarded.")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(script), *args])


def _check_keras() -> None:
    # As TensorFlow reads it.
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        raise click.BadParameter(
            "TF_USE_LEGACY_KERAS is set, so the script would use Keras 2 (tf_keras), which "
            "legroom can't guard. Unset it to use Keras 3, or run the script without legroom.",
            param_hint="TF_USE_LEGACY_KERAS",
        )


def _write_page(folder: Path) -> None:
    from legroom.cli.report import PAGE_NAME, write_page
    from legroom.core.errors import LegroomError
    from legroom.report.reading import read_run
    from legroom.report.screen.lines import say

    try:
        say(f"the report is in {write_page([read_run(folder)], folder / PAGE_NAME)}")
    except LegroomError as error:
        # The script has run: its exit code is worth more than this.
        say(str(error), colour="31")


def _check_folder(path: Path | None) -> None:
    if path is not None and path.exists() and not path.is_dir():
        raise click.BadParameter(
            f"{path} is a file. Give a folder; it is made if it is not there.",
            param_hint="--report",
        )


def _check_json(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise click.BadParameter(
            f"{path} can't be written: it is a folder, or lies in a folder that is not there.",
            param_hint="--json",
        )


def _cap(memory: str, *, keep_onednn: bool) -> dict[str, str]:
    """The child's environment for a hard cap.

    Raises:
        BadBudgetError: If the size can't be read, or no training could run in it on this machine.
    """
    from legroom.backends.base import current
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
