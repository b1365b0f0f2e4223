"""``legroom watch``: the memory of any process, while it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from legroom.cli.command import Command, json_flag

if TYPE_CHECKING:
    from legroom.machine.tree import TreeReading

__all__ = ["watch"]

_COLUMNS = (
    "at", "processes", "host_bytes", "host_limit_bytes", "cgroup_bytes", "gpu_bytes",
    "gpu_used_bytes", "gpu_total_bytes",
)  # fmt: skip


@click.command(
    cls=Command,
    runs_script=True,
    examples=(
        "legroom watch 12345",
        "legroom watch -- python train.py --epochs 5",
        "legroom watch --csv --every 0.1 -- python train.py > memory.csv",
    ),
    exit_codes="the command's own, or by the signal it died by; 0 when a watched process has "
    "ended; 2 if there is none; 130 after Ctrl-C.",
)
@click.argument("target", nargs=-1, required=True, metavar="PID | -- COMMAND")
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=0.5,
    metavar="SECONDS",
    show_default=True,
    help="Time between two readings.",
)
@click.option("--csv", is_flag=True, help="Print the readings as CSV, one line each.")
@json_flag("Print the readings as JSON, one line each.")
def watch(target: tuple[str, ...], every: float, csv: bool, as_json: bool) -> None:
    """Show the memory of a process and its children, and their GPUs.

    Any process, by its id or started as a command, with or without legroom. With `--csv` or
    `--json`, what the command prints goes to stderr.
    """
    from legroom.cli.terminal.process_view import watch_command, watch_process

    if csv and as_json:
        raise click.BadParameter("Give --csv or --json, not both.", param_hint="--csv")
    show = _MachineLines(csv=csv) if csv or as_json else None
    if len(target) == 1 and target[0].isdigit():
        sys.exit(watch_process(int(target[0]), every, show))
    sys.exit(watch_command(target, every, show))


class _MachineLines:
    """Prints readings for machines."""

    def __init__(self, *, csv: bool) -> None:
        self._csv = csv
        if csv:
            print(",".join(_COLUMNS), flush=True)

    def __call__(self, reading: TreeReading) -> None:
        if not self._csv:
            print(reading.to_json(), flush=True)
            return
        values = (getattr(reading, name) for name in _COLUMNS)
        print(",".join("" if value is None else str(value) for value in values), flush=True)
