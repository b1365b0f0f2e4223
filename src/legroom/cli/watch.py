"""``legroom watch``: the memory of any process, while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.script import OPTIONS_END_AT_SCRIPT

if TYPE_CHECKING:
    from legroom.machine.tree import TreeReading

__all__ = ["CONTEXT_SETTINGS", "watch"]

CONTEXT_SETTINGS = OPTIONS_END_AT_SCRIPT
_COLUMNS = (
    "at", "processes", "host_bytes", "host_limit_bytes", "cgroup_bytes", "gpu_bytes",
    "gpu_used_bytes", "gpu_total_bytes",
)  # fmt: skip


def watch(
    target: Annotated[
        list[str],
        typer.Argument(
            help="The id of a process, or `--` and a command to start.",
            metavar="PID | -- COMMAND",
            show_default=False,
        ),
    ],
    every: Annotated[
        float, typer.Option(help="Seconds between two readings.", metavar="SECONDS", min=0.05)
    ] = 0.5,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the readings as CSV, one line each.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the readings as JSON, one line each.")
    ] = False,
) -> None:
    """Show the memory of a process and its children, their limit, and their GPUs.

    Whether or not legroom runs it. In a terminal as a live curve; elsewhere as a
    line every few seconds; with `--csv` or `--json` as a line for each reading, and what the
    command prints to stdout goes to stderr.

    **Examples**

    `legroom watch 12345`

    `legroom watch -- python train.py --epochs 5`

    `legroom watch --csv --every 0.1 -- python train.py > memory.csv`

    **Exit code**: the command's own, or by the signal it died by; 0 when a watched process has
    ended; 2 if there is none; 130 after Ctrl-C.
    """
    from legroom.cli.watching import watch_command, watch_process

    if csv and as_json:
        raise typer.BadParameter("Give --csv or --json, not both.", param_hint="--csv")
    show = _MachineLines(csv=csv) if csv or as_json else None
    if len(target) == 1 and target[0].isdigit():
        raise typer.Exit(watch_process(int(target[0]), every, show))
    raise typer.Exit(watch_command(target, every, show))


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
