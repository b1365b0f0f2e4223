from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from legroom.core.events import Event
from legroom.report.run import RunReport
from legroom.report.screen.table import print_table


def event(name: str, **data: Any) -> Event:
    return Event.from_dict({"kind": "Event", "version": 1, "name": name, "data": data})


def shown(*events: Event) -> dict[str, str]:
    stream = io.StringIO()
    print_table(RunReport.from_events(events), stream)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows: dict[str, str] = {}
    for line in lines[1:-1]:
        key, value = line[2:15].strip(), line[15:-1].strip()
        last = key or list(rows)[-1]
        rows[last] = f"{rows[last]} | {value}" if not key else value
    return rows


START = event("progress", batch_size=256, budget_bytes=10**9)
PROGRESS = event(
    "progress", samples_seen=60_000, samples_lost=0, peak_bytes=750 * 10**6, batch_size=256
)


def test_nothing_went_wrong() -> None:
    assert shown(START, PROGRESS, event("training_finished")) == {
        "out of memory": "never",
        "batches": "256, whole",
        "peak": "750 MB of 1.00 GB (75%)",
        "samples": "60 000 seen, none lost",
    }


def test_survived() -> None:
    rows = shown(
        START,
        event("oom", place="conv2d", batch_size=256, slice_size=256, seconds=11.0),
        event("plan", batch_size=256, slice_size=128, slices=2, reason="oom"),
        event("oom", place="conv2d", batch_size=256, slice_size=128, seconds=10.0),
        event("plan", batch_size=256, slice_size=64, slices=4, reason="oom"),
        PROGRESS,
    )
    assert rows["out of memory"] == "2 times, survived; it cost 21 s"
    assert rows["batches"] == "256 as 4 slices of 64"


def test_several_trainings_are_not_mixed_up() -> None:
    plans = [
        event("plan", batch_size=batch, slice_size=size, slices=-(-batch // size), reason="planned")
        for batch, size in ((512, 512), (64, 32), (10, 4))
    ]
    rows = shown(START, *plans)
    assert rows["batches"] == (
        "512, whole | 256, whole | 64 as 2 slices of 32 | and 1 other batch size"
    )


def test_short_last_batches_are_not_worth_a_line() -> None:
    plans = [
        event("plan", batch_size=batch, slice_size=64, slices=-(-batch // 64), reason="planned")
        for batch in (256, 96)
    ]
    assert shown(START, *plans)["batches"] == "256 as 4 slices of 64"


def test_evaluation_is_told_apart() -> None:
    rows = shown(
        event("plan", batch_size=512, slice_size=128, slices=4, subject="evaluation batch"),
        event("plan", batch_size=64, slice_size=32, slices=2, subject="batch"),
    )
    assert rows["batches"] == "64 as 2 slices of 32 | evaluation batch 512 as 4 slices of 128"


def test_a_loop_by_hand_only_shows_progress() -> None:
    assert shown(PROGRESS)["batches"] == "256, whole"


def test_a_slice_that_does_not_divide_the_batch() -> None:
    rows = shown(event("plan", batch_size=10, slice_size=4, slices=3, reason="planned"))
    assert rows["batches"] == "10 as 3 slices of up to 4"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ({"slice_size": 1}, "even one sample at a time did not fit"),
        ({"slice_size": 64}, "slices of 64, as fixed, did not fit"),
        ({}, "a batch that can't be sliced did not fit"),
    ],
)
def test_lost_samples_and_no_fit_are_said(size, words) -> None:
    progress = event("progress", samples_seen=5, samples_lost=3)
    rows = shown(START, event("cannot_fit", **size), progress)
    assert rows["out of memory"] == words
    assert rows["samples"] == "5 seen, 3 lost"


def test_what_is_not_known_is_not_shown() -> None:
    assert shown(event("note")) == {"out of memory": "never", "samples": "0 seen, none lost"}


@pytest.mark.parametrize("wanted", [True, False])
def test_a_report_shows_itself(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rich.print(history.legroom)``, in colour unless NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not wanted:
        monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(RunReport.from_events([START, event("cannot_fit")]))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "batches" in output
    assert ("\x1b[1;31m" in output) is wanted
