"""Finds the record of a run: in a folder that a run has left, in a journal, or in a report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from legroom.core.errors import LegroomError
from legroom.core.events import RunStarted
from legroom.report.journal import read_journal
from legroom.report.run import RunReport

__all__ = ["JOURNAL_NAME", "RECORD_NAME", "KeptRun", "read_run"]

RECORD_NAME = "report.json"
JOURNAL_NAME = "journal.jsonl"


@dataclasses.dataclass(frozen=True)
class KeptRun:
    """A run that was read from disk.

    Attributes:
        name: What to call it: its script, or where it was found.
        source: The file it was read from.
        report: What it did.
    """

    name: str
    source: Path
    report: RunReport


def read_run(place: Path) -> KeptRun:
    """Read the record of a run.

    Args:
        place: A folder with a report or a journal in it, or one of those files.

    Raises:
        LegroomError: If there is none, or it can't be read.
    """
    source = _source(place)
    report = _journal(source) if source.suffix == ".jsonl" else _report(source)
    if not report.events:
        raise LegroomError(
            f"There is nothing to report in {source}: no event of a run was read. Expected what "
            "`legroom run --report DIR` or `--json PATH` wrote, or the folder of a run that was "
            "interrupted (.legroom/SCRIPT)."
        )
    return KeptRun(_name(report, place), source, report)


def _source(place: Path) -> Path:
    if place.is_file():
        return place
    for name in (RECORD_NAME, JOURNAL_NAME):
        if (place / name).is_file():
            return place / name
    what = "There is no run in" if place.is_dir() else "There is no file or folder"
    raise LegroomError(
        f"{what} {place}. Give a folder that `legroom run --report DIR` wrote, the file of "
        "`legroom run --json PATH`, the folder of a run that was interrupted (.legroom/SCRIPT), "
        "or its script."
    )


def _journal(path: Path) -> RunReport:
    try:
        return RunReport.from_events(read_journal(path))
    except OSError as error:
        raise LegroomError(f"{path} can't be read: {error.strerror or error}") from error


def _report(path: Path) -> RunReport:
    try:
        data = json.loads(path.read_text(errors="strict"))
        if not isinstance(data, dict):
            raise ValueError(f"Expected a JSON object. Received: {type(data).__name__}")
        return RunReport.from_dict(data)
    except OSError as error:
        raise LegroomError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LegroomError(f"{path} is no report of a run: {error}") from error


def _name(report: RunReport, place: Path) -> str:
    for event in report.events:
        if isinstance(event, RunStarted):
            return Path(event.script).name or place.name
    return place.absolute().name
