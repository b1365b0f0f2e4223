"""``legroom sweep``: a script with many sets of options, as many at once as the memory allows."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from legroom.cli.command import PATH, Command, check_script, json_flag

if TYPE_CHECKING:
    from legroom.sweeps.packing.rehearsal import SweepForecast
    from legroom.sweeps.sweep_file import SweepFile
    from legroom.sweeps.trials.trial import Trial

__all__ = ["sweep"]

_FAILED, _CANNOT_FIT = 1, 3
_MOST_ROWS = 20


@click.command(
    cls=Command,
    examples=(
        "legroom sweep sweep.toml",
        "legroom sweep --dry-run sweep.toml",
    ),
    exit_codes="0 if all trials finished, 3 if one can't fit, 1 if one failed, 2 if the command "
    "can't be understood.",
)
@click.argument("file", type=PATH)
@click.option("--memory", metavar="SIZE", help="What all trials share: 8GiB, 80%.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Run N at once, at most.")
@click.option("--dry-run", is_flag=True, help="Try one trial of each shape; print the plan only.")
@json_flag("Print the trials as one JSON document.")
def sweep(
    file: Path, memory: str | None, workers: int | None, dry_run: bool, as_json: bool
) -> None:
    """Run a script with many sets of options, which FILE has.

    Each trial runs in a process of its own, guarded and capped. If the sweep is interrupted, the
    same command resumes it. The last JSON object that a trial prints is its result.

    \b
    script = "train.py"     # train.py --epochs 20 --units 64 --lr 0.003
    memory = "8GiB"         # workers, time_limit, folder, exact, seed
    draws = 10              # of [random], for each of the grid
    fixed = { epochs = 20 }
    grid = { units = [64, 128] }
    random.lr = { low = 1e-4, high = 1e-1, log = true }
    """  # noqa: D301  (click's mark for lines that stay as they are)
    from legroom.sweeps.sweep_file import read_sweep_file

    read = read_sweep_file(file)
    check_script(read.script)
    settings = dataclasses.replace(
        read.settings,
        memory=memory or read.settings.memory,
        workers=workers or read.settings.workers,
        name=read.script.name,
    )
    read = dataclasses.replace(read, settings=settings)
    if dry_run:
        _foresee(read, as_json)
        return
    trials = _run(read)
    if as_json:
        document = {
            "kind": "Sweep", "version": 1, "script": str(read.script),
            "trials": [trial.to_dict() for trial in trials],
        }  # fmt: skip
        click.echo(json.dumps(document, indent=1))
    else:
        _show(trials)
    if any(trial.status == "cannot_fit" for trial in trials):
        sys.exit(_CANNOT_FIT)
    if any(trial.status != "finished" for trial in trials):
        sys.exit(_FAILED)


def _training(read: SweepFile) -> Any:
    from legroom.snapshots.code import code_of
    from legroom.sweeps.sweep_file import ScriptTraining

    return ScriptTraining(str(read.script), code_of(read.script))


def _run(read: SweepFile) -> list[Trial]:
    from legroom.sweeps.sweep import run_sweep

    return run_sweep(_training(read), read.configs, read.settings)


def _foresee(read: SweepFile, as_json: bool) -> None:
    import tempfile

    from legroom.report.screen.lines import say
    from legroom.sweeps.opening import opened
    from legroom.sweeps.packing.rehearsal import rehearse

    with tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder:
        settings = dataclasses.replace(read.settings, folder=folder)
        with opened(_training(read), settings) as tried:
            forecast = rehearse(tried, read.configs, len(read.configs), say)
    if as_json:
        click.echo(forecast.to_json(indent=1))
    else:
        _show_forecast(forecast)


def _show_forecast(forecast: SweepForecast) -> None:
    from rich.table import Table

    from legroom.core.units import format_bytes, format_seconds

    table = Table(box=None, pad_edge=False)
    for title in ("trial", "starts", "takes", "memory", "config"):
        table.add_column(title, justify="left" if title == "config" else "right")
    for trial in forecast.trials[:_MOST_ROWS]:
        times = [
            "?" if seconds is None else format_seconds(seconds)
            for seconds in (trial.start, trial.seconds)
        ]
        memory = format_bytes(trial.cap_bytes) + (" *" if trial.tried else "")
        table.add_row(str(trial.number), *times, memory, _words(trial.config))
    _print(table)
    more = len(forecast.trials) - _MOST_ROWS + forecast.left_out
    if more > 0:
        click.echo(f"and {more} more")
    trials = len(forecast.trials) + forecast.left_out
    took = (
        "how long it takes is not known: the steps of its trials were not counted"
        if forecast.seconds is None
        else f"about {format_seconds(forecast.seconds)}"
    )
    click.echo(
        f"{trials} trials, up to {forecast.most_at_once} at once, with up to "
        f"{format_bytes(forecast.most_bytes)} of {format_bytes(forecast.memory_bytes)}: {took}. "
        "(* = measured; others by the trials most like them)"
    )
    for trial in forecast.trials:
        if trial.trouble:
            click.echo(f"Trial {trial.number} failed when it was tried: {trial.trouble}", err=True)


def _show(trials: Sequence[Trial]) -> None:
    from rich.table import Table

    from legroom.core.units import format_bytes, format_seconds

    table = Table(box=None, pad_edge=False)
    for title in ("trial", "status", "time", "peak", "config", "result"):
        table.add_column(title, justify="left" if title in ("config", "result") else "right")
    for trial in trials[: 10 * _MOST_ROWS]:
        result = "" if trial.result is None else _words(trial.result)
        table.add_row(
            str(trial.number),
            trial.status.replace("_", " "),
            format_seconds(trial.seconds),
            "" if trial.peak_bytes is None else format_bytes(trial.peak_bytes),
            _words(trial.config),
            result,
        )
    _print(table)
    if len(trials) > 10 * _MOST_ROWS:
        click.echo(f"and {len(trials) - 10 * _MOST_ROWS} more: --json has all of them")


def _print(table: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(table)


def _words(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    words = (f"{key}={_number(item)}" for key, item in value.items())
    return ", ".join(words)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
