"""``legroom report``: a page about one run, or about two."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legroom.cli.command import PATH, Command, json_flag

if TYPE_CHECKING:
    from legroom.report.reading import KeptRun

__all__ = ["PAGE_NAME", "report", "write_page"]

PAGE_NAME = "report.html"
_COMPARISON_NAME = "comparison.html"


@click.command(
    cls=Command,
    examples=(
        "legroom report out           after `legroom run --report out train.py`",
        "legroom report train.py      after a run that was killed",
        "legroom report before after -o comparison.html",
        "legroom report out --trace trace.json",
    ),
    exit_codes="0 if the page was written, 1 if there is no run to be read.",
)
@click.argument("run", type=PATH)
@click.argument("other", type=PATH, required=False)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help=f"Default: {PAGE_NAME} beside the run's record; {_COMPARISON_NAME} here for two.",
)
@click.option(
    "--trace",
    type=PATH,
    metavar="FILE",
    help="Also write a trace for ui.perfetto.dev or chrome://tracing.",
)
@json_flag("Print the runs' summary as JSON.")
def report(
    run: Path, other: Path | None, output: Path | None, trace: Path | None, as_json: bool
) -> None:
    """Make a page about a run, or about two: one HTML file.

    RUN is the folder given to `legroom run --report`, the file given to `--json`, the folder of an
    interrupted run (.legroom/SCRIPT), or the script. A run that was killed has a page, too.
    """
    import json

    from legroom.report.reading import read_run

    runs = [read_run(_place(place)) for place in (run, other) if place is not None]
    if output is None:
        beside = runs[0].source.parent / PAGE_NAME
        output = beside if len(runs) == 1 else Path(_COMPARISON_NAME)
    written = write_page(runs, output)
    if trace is not None:
        from legroom.report.exports.chrometrace import chrome_trace

        _write(chrome_trace(runs[0].report, runs[0].name).encode(), trace, "--trace")
    if as_json:
        document = {
            "kind": "Report",
            "version": 1,
            "path": str(written),
            "runs": [kept.report.to_dict() for kept in runs],
        }
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo(str(written))


def write_page(runs: Sequence[KeptRun], path: Path) -> Path:
    """Write the page of one run or of two.

    Raises:
        LegroomError: If it can't be written.
    """
    from legroom.doctor.pipelines import check_stages
    from legroom.report.html.page import make_page, read_for_page

    page = make_page([read_for_page(kept, check_stages) for kept in runs]).encode()
    _write(page, path, "--output")
    return path


def _write(data: bytes, path: Path, option: str) -> None:
    from legroom.core.errors import LegroomError
    from legroom.core.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        # It is made to be shown around: with the rights that any new file has here.
        os.umask(usual := os.umask(0))
        path.chmod(0o666 & ~usual)
    except OSError as error:
        raise LegroomError(
            f"{path} could not be written ({error.strerror or error}). Give another place with "
            f"{option}."
        ) from error


def _place(run: Path) -> Path:
    """A run's folder, where its script is named."""
    if run.suffix == ".py" and run.is_file():
        from legroom.supervisor.place import newest_folder

        return newest_folder(run)
    return run
