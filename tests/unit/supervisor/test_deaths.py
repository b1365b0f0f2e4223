"""Which deaths are memory's, and what is tried next."""

from __future__ import annotations

import signal

import pytest

from legroom.core.events import (
    Attempted,
    AttemptPassed,
    Event,
    MemorySampled,
    RanOut,
    SnapshotWritten,
)
from legroom.supervisor.deaths import Death, Restarts, read_death


def attempt(size: int, *, passed: bool = False, training: int = 0, **memory: int) -> Event:
    made = AttemptPassed if passed else Attempted
    return made(training=training, batch_size=256, slice_size=size, **memory)


TIGHT = {"need_bytes": 200, "free_bytes": 250}
ROOMY = {"need_bytes": 200, "free_bytes": 4000}
BROKEN = RanOut(slice_size=64, broken=True)
FILLED = MemorySampled(device_bytes=990, full=True)
EASED = MemorySampled(device_bytes=500, full=False)
CHECK = "F0000 allocator.cc:12] Check failed: out of memory, ResourceExhausted: OOM when allocating"


@pytest.mark.parametrize(
    ("code", "events", "kills", "lines", "memory"),
    [
        (0, [attempt(8, **TIGHT)], 1, "", False),
        (1, [attempt(8, **TIGHT)], 1, "MemoryError", False),
        (3, [], 0, "", False),
        (-signal.SIGKILL, [attempt(8, passed=True)], 1, "", True),
        (-signal.SIGKILL, [attempt(8, **TIGHT)], 0, "", False),  # someone's own kill -9
        (-signal.SIGTERM, [attempt(8, **TIGHT)], 0, "", False),
        (-signal.SIGINT, [attempt(8, **TIGHT)], 0, "", False),
        (-signal.SIGSEGV, [attempt(8, **TIGHT)], 0, "", True),
        (-signal.SIGSEGV, [attempt(8, **ROOMY)], 0, "", False),  # a bug of someone's
        (-signal.SIGSEGV, [attempt(8, **TIGHT), attempt(8, passed=True)], 0, "", False),
        (-signal.SIGABRT, [RanOut(), attempt(8)], 0, "", True),
        (-signal.SIGABRT, [attempt(8)], 0, "", False),
        (-signal.SIGABRT, [attempt(64, passed=True), BROKEN], 0, "", True),
        (-signal.SIGABRT, [attempt(64, passed=True), RanOut()], 0, "", False),
        (-signal.SIGSEGV, [attempt(64, passed=True), EASED, FILLED], 0, "", True),
        (-signal.SIGSEGV, [attempt(64, passed=True), FILLED, EASED], 0, "", False),
        (-signal.SIGSEGV, [FILLED], 0, "", False),  # no step of ours
        (-signal.SIGKILL, [attempt(64, passed=True), FILLED], 0, "", False),
        (-signal.SIGABRT, [], 0, "terminate called after throwing 'std::bad_alloc'", True),
        (-signal.SIGABRT, [], 0, "free(): invalid pointer", False),
    ],
)
def test_which_deaths_are_memorys(code, events, kills, lines, memory) -> None:
    death = read_death(code, events, kernel_kills=kills, last_lines=lines)
    assert death.memory is memory


def test_slices_shrink_with_each_death_until_there_is_no_smaller_one() -> None:
    restarts, size, tried = Restarts(20), 256, []
    while True:
        tried.append(size)
        events = [attempt(size, **TIGHT)]
        if restarts.answer(read_death(-11, events)) is not None:
            break
        (bar,) = restarts.plan()
        assert bar.slice_size <= max(2, size * 0.7)
        size = bar.slice_size - 1
    assert tried[-1] == 1
    assert len(tried) <= 12


def test_after_a_size_that_worked_it_is_kept_to() -> None:
    restarts = Restarts(5)
    events = [attempt(64, **TIGHT), attempt(64, passed=True), attempt(170, **TIGHT)]
    assert restarts.answer(read_death(-11, events)) is None
    assert restarts.plan()[0].slice_size == 65


def test_after_a_step_that_broke_the_process_slices_are_smaller_than_its_own() -> None:
    restarts = Restarts(5)
    assert restarts.answer(read_death(-6, [attempt(64, passed=True), BROKEN])) is None
    assert restarts.plan()[0].slice_size == 44


def test_not_twice_at_the_same_place_without_progress() -> None:
    restarts = Restarts(20)
    death = Death(-9, True, True, "killed", 0, "batch", 64, None, (0, 1, 5, False))
    assert restarts.answer(death) is None
    assert "same place" in str(restarts.answer(death))
    further = Death(-9, True, True, "killed", 0, "batch", 64, None, (0, 2, 0, False))
    assert restarts.answer(further) is None


def test_a_script_that_holds_the_memory_itself_is_not_started_again() -> None:
    death = read_death(-9, [], kernel_kills=1)
    assert death.memory
    assert "script itself" in str(Restarts(5).answer(death))


def test_restarts_are_bounded_and_the_hosts_memory_is_read_less_ahead() -> None:
    restarts = Restarts(2)
    for place in range(2):
        events = [attempt(64 - place, passed=True), SnapshotWritten(step=place)]
        assert restarts.answer(read_death(-9, events, kernel_kills=1)) is None
    assert restarts.lean
    events = [attempt(8, passed=True), SnapshotWritten(step=9)]
    assert "--max-restarts" in str(restarts.answer(read_death(-9, events, kernel_kills=1)))
