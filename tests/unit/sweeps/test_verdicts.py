"""What becomes of a trial whose process has ended."""

from __future__ import annotations

import signal

import pytest

from legroom.core.events import Attempted, MemorySampled, Planned
from legroom.sweeps.trials.trial import Answer
from legroom.sweeps.trials.verdicts import (
    NEEDS_MORE,
    Again,
    Done,
    Ending,
    Failed,
    Verdicts,
    needs_more,
)

MIB = 2**20
MEMORY, CAP = 1000 * MIB, 400 * MIB


def planned(**facts: object) -> Planned:
    return Planned(**{"batch_size": 64, "slice_size": 32, "slices": 2, **facts})  # type: ignore[arg-type]


def test_an_answer_counts_however_the_process_ended() -> None:
    answer = Answer("returned", 3)
    assert Verdicts(MEMORY).judge(Ending(0, answer), CAP) == Done(answer)
    assert Verdicts(MEMORY).judge(Ending(-signal.SIGSEGV, answer), CAP) == Done(answer)


def test_an_error_of_its_own_is_never_retried() -> None:
    verdict = Verdicts(MEMORY).judge(Ending(1, Answer("raised", error="ValueError: x")), CAP)
    assert verdict == Failed("failed", "ValueError: x")


def test_an_error_right_after_running_out_is_one_of_memory() -> None:
    """oneDNN computes with what was not allocated, and the op after it complains."""
    log = "Allocator (mklcpu) ran out of memory trying to allocate 76.29MiB (rounded to 80000000)"
    error = Answer("raised", error="InvalidArgumentError: In[1] is not a matrix")
    ending = Ending(1, error, last_lines=log)
    verdict = Verdicts(MEMORY).judge(ending, CAP)
    assert isinstance(verdict, Again)
    assert verdict.need_bytes == 600 * MIB
    verdict = Verdicts(MEMORY).judge(ending, MEMORY)
    assert isinstance(verdict, Failed)
    assert verdict.status == "failed"
    assert verdict.why.startswith("InvalidArgumentError: In[1] is not a matrix. Memory had run out")


def test_running_out_is_answered_by_a_larger_cap_and_at_last_by_a_diagnosis() -> None:
    verdicts, ending = Verdicts(MEMORY), Ending(1, Answer("raised", short=True, story="why"))
    first = verdicts.judge(ending, CAP)
    assert isinstance(first, Again)
    assert first.need_bytes == 600 * MIB
    assert verdicts.judge(ending, 600 * MIB) == Again(first.why.replace("419", "629"), 900 * MIB)
    assert isinstance(verdicts.judge(ending, 900 * MIB), Again)
    assert verdicts.judge(ending, MEMORY) == Failed("cannot_fit", "why")


def test_what_needs_more_than_there_is_is_not_tried_again() -> None:
    answer = Answer("raised", short=True, need_bytes=2 * MEMORY, story="why")
    assert Verdicts(MEMORY).judge(Ending(1, answer), CAP) == Failed("cannot_fit", "why")
    less = Answer("raised", short=True, need_bytes=800 * MIB, story="why")
    verdict = Verdicts(MEMORY).judge(Ending(1, less), CAP)
    assert isinstance(verdict, Again)
    assert verdict.need_bytes == 840 * MIB


def test_what_a_trial_asks_for_is_what_it_gets() -> None:
    asked = Ending(NEEDS_MORE, events=[planned(need_bytes=800 * MIB)])
    verdict = Verdicts(MEMORY).judge(asked, CAP)
    assert isinstance(verdict, Again)
    assert verdict.need_bytes == 840 * MIB
    asked = Ending(NEEDS_MORE, events=[planned(need_bytes=5000 * MIB)])
    assert Verdicts(MEMORY).judge(asked, CAP) == Again(verdict.why, MEMORY)
    unknown = Verdicts(MEMORY).judge(Ending(NEEDS_MORE, events=[planned()]), CAP)
    assert unknown == Again(verdict.why, 600 * MIB)


@pytest.mark.parametrize(
    ("event", "asks"),
    [
        (planned(reason="planned"), True),
        (planned(reason="oom"), True),
        (planned(reason="shrink", budget_bytes=CAP), True),
        (planned(reason="planned", budget_bytes=CAP // 2), False),  # the user's own budget
        (planned(reason="fixed"), False),
        (planned(reason="planned", subject="evaluation batch"), False),
        (planned(reason="planned", slices=1), False),
        (MemorySampled(full=True), False),
    ],
)
def test_who_asks_for_more(event: Planned, asks: bool) -> None:
    assert needs_more(event, CAP) == asks


def test_a_crash_by_memory_gets_more_and_then_smaller_slices() -> None:
    attempt = Attempted(training=0, slice_size=64, batch_size=64)
    full = MemorySampled(device_bytes=CAP, full=True)
    ending = Ending(-signal.SIGSEGV, events=[attempt, full])
    verdicts = Verdicts(MEMORY)
    verdict = verdicts.judge(ending, CAP)
    assert isinstance(verdict, Again)
    assert verdict.need_bytes == 600 * MIB
    assert verdicts.barred == ()
    verdict = verdicts.judge(ending, MEMORY)
    assert isinstance(verdict, Again)
    assert verdict.need_bytes is None
    assert verdicts.barred[0].slice_size < 64


def test_other_crashes_are_never_retried() -> None:
    verdict = Verdicts(MEMORY).judge(Ending(-signal.SIGSEGV), CAP)
    assert isinstance(verdict, Failed)
    assert "SIGSEGV" in verdict.why


def test_where_running_out_shows_in_any_way_a_crash_is_tried_once_more_with_care() -> None:
    verdicts = Verdicts(MEMORY, unsure=True)
    verdict = verdicts.judge(Ending(-signal.SIGSEGV), CAP)
    assert isinstance(verdict, Again)
    assert verdicts.careful
    assert verdict.need_bytes is None
    assert isinstance(verdicts.judge(Ending(-signal.SIGSEGV), CAP), Failed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_killed_resumes_but_not_for_ever(number: int) -> None:
    verdicts = Verdicts(MEMORY)
    for _ in range(3):
        assert isinstance(verdicts.judge(Ending(-number), CAP), Again)
    assert isinstance(verdicts.judge(Ending(-number), CAP), Failed)


def test_kills_by_the_kernel_are_of_the_host() -> None:
    verdicts = Verdicts(MEMORY)
    verdict = verdicts.judge(Ending(-signal.SIGKILL, kernel_kills=1), CAP)
    assert isinstance(verdict, Again)
    assert verdict.of_host
    assert verdict.need_bytes is None


def test_taking_too_long_and_leaving() -> None:
    slow = Verdicts(MEMORY).judge(Ending(-signal.SIGKILL, timed_out=90.0), CAP)
    assert isinstance(slow, Failed)
    assert slow.status == "timed_out"
    assert "1 min 30 s" in slow.why
    left = Verdicts(MEMORY).judge(Ending(7), CAP)
    assert isinstance(left, Failed)
    assert "exit code 7" in left.why
