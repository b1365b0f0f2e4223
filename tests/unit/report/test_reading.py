"""Finding the record of a run, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from legroom.core.errors import LegroomError
from legroom.core.events import Predicted, RunStarted
from legroom.report.html.page import read_for_page
from legroom.report.journal import Journal
from legroom.report.reading import JOURNAL_NAME, RECORD_NAME, read_run
from legroom.report.run import RunReport
from legroom.snapshots.folder import RunFolder

STARTED = RunStarted(script="/home/me/train.py")


def test_a_report_is_read_from_its_folder_and_by_its_name(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text(RunReport.from_events([STARTED]).to_json())
    for place in (tmp_path, tmp_path / RECORD_NAME):
        run = read_run(place)
        assert run.name == "train.py"
        assert run.report.events == (STARTED,)


def test_a_journal_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).journal.name == JOURNAL_NAME
    Journal(tmp_path / JOURNAL_NAME)(STARTED)
    with open(tmp_path / JOURNAL_NAME, "a") as file:
        file.write('{"kind": "Event", "vers')
    assert read_run(tmp_path).report.events == (STARTED,)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (RECORD_NAME, "[]", "is no report of a run"),
        (RECORD_NAME, "{", "is no report of a run"),
        (RECORD_NAME, '{"kind": "Plan", "version": 1}', "Expected a RunReport"),
        (RECORD_NAME, '{"kind": "RunReport", "version": 1, "events": [3]}', "no report of a run"),
        (RECORD_NAME, RunReport().to_json(), "nothing to report"),
        (JOURNAL_NAME, "no json\n", "nothing to report"),
        ("other.txt", "", "There is no run in"),
    ],
)
def test_what_is_no_run_is_said(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(LegroomError, match=said):
        read_run(tmp_path)


def test_a_place_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LegroomError, match="There is no file or folder"):
        read_run(tmp_path / "nowhere")


def test_an_event_of_another_version_is_said(tmp_path: Path) -> None:
    strange = Predicted(estimate={"breakdown": "of another kind"})
    (tmp_path / RECORD_NAME).write_text(RunReport(events=(strange,)).to_json())
    with pytest.raises(LegroomError, match="can't read"):
        read_for_page(read_run(tmp_path))
