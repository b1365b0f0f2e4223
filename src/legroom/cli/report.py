"""``legroom report``: a page about one run, or about two."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from legroom.report.reading import KeptRun

__all__ = ["PAGE_NAME", "report", "write_page"]

PAGE_NAME = "report.html"
_COMPARISON_NAME = "comparison.html"


def report(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run: the folder given to `legroom run --report`, the file given to `--json`, "
            "the folder of an interrupted run (.legroom/SCRIPT), or the script.",
            metavar="RUN",
            show_default=False,
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(help="Another run to compare it with.", metavar="OTHER", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"The page's file. By default {PAGE_NAME} beside the run's record; for two runs "
            f"{_COMPARISON_NAME} in this folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Also write memory and events as a trace, for ui.perfetto.dev or "
            "chrome://tracing.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary of the runs as one JSON document.")
    ] = False,
) -> None:
    """Make a page about a run: one HTML file that needs nothing else.

    Memory over time with its limit and what happened, the memory of a step by what it is for,
    layers by what they hold, predicted against measured, the alternatives and what they would have
    needed, the input's stages, findings, machine and versions. It is made from what the run wrote
    down while it ran, so a run that was killed has one too.

    **Examples**

    `legroom report out` (after `legroom run --report out train.py`)

    `legroom report train.py` (after a run that was killed)

    `legroom report before after -o comparison.html`

    `legroom report out --trace trace.json`

    **Exit code**: 0 if the page was written, 1 if there is no run to be read.
    """  # fmt: skip
    import json

    from legroom.report.reading import read_run

    runs = [read_run(_place(place)) for place in (run, other) if place is not None]
    if output is None:
        beside = runs[0].source.parent / PAGE_NAME
        output = beside if len(runs) == 1 else Path(_COMPARISON_NAME)
    written = write_page(runs, output)
    if trace is not None:
        from legroom.report.chrometrace import chrome_trace

        _write(chrome_trace(runs[0].report, runs[0].name).encode(), trace, "--trace")
    if as_json:
        document = {
            "kind": "Report",
            "version": 1,
            "path": str(written),
            "runs": [kept.report.to_dict() for kept in runs],
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        typer.echo(str(written))


def write_page(runs: Sequence[KeptRun], path: Path) -> Path:
    """Write the page of one run or of two.

    Raises:
        LegroomError: If it can't be written.
    """
    from legroom.doctor.pipelines import check_stages
    from legroom.report.page import make_page, read_for_page

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
