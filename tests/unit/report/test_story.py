"""A run's course, its end and its story, from events alone."""

from __future__ import annotations

from typing import Any

import pytest

from legroom.core.events import Event
from legroom.report.course import read_course
from legroom.report.foreseen import Foreseen, read_foreseen
from legroom.report.run import RunReport
from legroom.report.story import figures, outcome, story


def event(name: str, after: float, text: str = "", /, **data: Any) -> Event:
    made = {"kind": "Event", "version": 1, "name": name, "text": text, "at": 1000 + after}
    return Event.from_dict({**made, "data": data})


@pytest.mark.parametrize(
    ("told", "mood", "words"),
    [
        ([], "open", "did not end: it was killed, or still runs"),
        ([event("run_started", 0)], "open", "did not end: it was killed, or still runs"),
        ([event("run_started", 0), event("run_ended", 1, code=0)], "good", "finished"),
        ([event("run_ended", 1, code=1)], "bad", "failed with exit code 1"),
        ([event("run_ended", 1, code=-9)], "bad", "was killed by SIGKILL"),
        ([event("run_ended", 1, code=-99)], "bad", "was killed by signal 99"),
        ([event("run_ended", 1, code=-9), event("restart", 2)], "open",
         "did not end: it was killed, or still runs"),
        ([event("cannot_fit", 1), event("run_ended", 2, code=3)], "bad",
         "ended because it does not fit"),
        ([event("training_started", 0), event("training_finished", 1)], "good", "finished"),
    ],
)  # fmt: skip
def test_how_it_ended(told: list[Event], mood: str, words: str) -> None:
    assert outcome(RunReport.from_events(told)) == (mood, words)


def test_a_restart_breaks_the_curve_and_adds_up_steps() -> None:
    course = read_course([
        event("run_started", 0),
        event("memory", 1, device_bytes=10, host_bytes=20, steps=5),
        event("restart", 3),
        event("memory", 4, device_bytes=30, host_bytes=40, steps=7),
    ])  # fmt: skip
    assert course.seconds == (1, 3, 4)
    assert course.device == (10, None, 30)
    assert course.steps == 12
    assert course.duration == 4
    assert [one.name for one in course.happenings] == ["restart"]


def test_limits_and_slices_over_time() -> None:
    course = read_course([
        event("plan", 0, batch_size=8, slice_size=4, slices=2, budget_bytes=100),
        event("plan", 1, batch_size=8, slice_size=2, slices=4, budget_bytes=100),
        event("plan", 2, batch_size=8, slice_size=8, slices=1, budget_bytes=90),
        event("plan", 3, subject="evaluation batch", batch_size=8, slice_size=1, slices=8),
    ])  # fmt: skip
    assert course.limit == ((0, 100), (2, 90))
    assert course.slices == ((0, 8, 4), (1, 8, 2), (2, 8, 8))
    assert [one.text for one in course.happenings][:3] == [
        "batch 8 runs as 2 slices of 4", "batch 8 runs as 4 slices of 2", "batch 8 runs whole",
    ]  # fmt: skip


def test_snapshots_are_thinned_and_what_matters_is_not() -> None:
    many = [event("snapshot_taken", k, file=str(k)) for k in range(5000)]
    ooms = [event("oom", 5000 + k, f"oom {k}") for k in range(1000)]
    names = [one.name for one in read_course([*many, *ooms]).happenings]
    assert names.count("oom") == 1000
    assert 100 < names.count("snapshot_taken") <= 300


def test_the_story_of_a_run_that_ran_out() -> None:
    report = RunReport.from_events([
        event("run_started", 0),
        event("oom", 2, "out", batch_size=64, slice_size=64, seconds=12.0),
        event("plan", 2, batch_size=64, slice_size=21, slices=4, budget_bytes=2_000_000),
        event("progress", 90, samples_seen=640, samples_lost=0, peak_bytes=1_500_000,
              batch_size=64),
        event("run_ended", 100, code=0),
    ])  # fmt: skip
    course = read_course(report.events)
    assert story(report, course, Foreseen(), "train.py") == [
        "train.py trained on batches of 64 for 1 min 40 s and finished.",
        "At most 1.50 MB were in use on the device of the 2.00 MB it may use (75%); memory ran out "
        "once, which took 12 s and lost nothing; batches ran as 4 slices of up to 21.",
        "640 samples are in the weights, and none was lost.",
    ]
    values = {figure.key: figure.value for figure in figures(report, course)}
    assert values["rate"] == 6.4
    assert values["oom_seconds"] == 12.0


def test_the_largest_need_of_a_size_is_what_was_measured() -> None:
    foreseen = read_foreseen([
        event("measured", 0, subject="batch", slice_size=4, need_bytes=90, predicted_bytes=80),
        event("measured", 1, subject="batch", slice_size=4, need_bytes=100, predicted_bytes=80),
        event("measured", 2, subject="batch", slice_size=8, need_bytes=None, predicted_bytes=80),
    ])  # fmt: skip
    (one,) = foreseen.measured
    assert one.need_bytes == 100
    assert one.error == pytest.approx(-0.2)
