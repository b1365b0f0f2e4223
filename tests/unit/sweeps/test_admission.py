"""Admission: caps never add up to more than there is, and every trial starts some day."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.sweeps.packing.admission import Admission, threads_for
from legroom.sweeps.packing.needs import Cap


def sure(size: int) -> Cap:
    return Cap(size, size)


@pytest.mark.parametrize(
    ("memory", "workers", "caps", "started"),
    [
        (10, 2, [3, 9], [1]),  # the large one first; nothing fits beside it
        (10, 2, [3, 6], [1, 0]),
        (10, 8, [5, 4, 3, 2], [0, 1]),  # 5 + 4, and 1 left over
        (10, 8, [6, 5, 4, 1], [0, 2]),  # 5 does not fit beside 6, so 4 does
        (10, 1, [1, 2], [1]),
        (10, 3, [2, 2, 2, 2], [0, 1, 2]),
        (10, 3, [], []),
    ],
)
def test_what_starts(memory: int, workers: int, caps: list[int], started: list[int]) -> None:
    admission = Admission(memory, workers)
    for number, cap in enumerate(caps):
        admission.add(number, sure(cap))
    seen = []
    while (grant := admission.next()) is not None:
        seen.append(grant.number)
        assert grant.nbytes == caps[grant.number]
    assert seen == started


def test_a_guess_is_content_with_what_is_free() -> None:
    admission = Admission(10, 4)
    admission.add(0, sure(7))
    admission.add(1, Cap(5, 2))
    admission.add(2, Cap(5, 4))
    grants = [admission.next(), admission.next(), admission.next()]
    assert [(grant.number, grant.nbytes) for grant in grants if grant] == [(0, 7), (1, 3)]


def test_room_of_the_machine_counts_only_beside_others() -> None:
    admission = Admission(10, 4)
    admission.add(0, sure(4))
    admission.add(1, sure(4))
    first = admission.next(room=0)
    assert first is not None
    assert admission.next(room=3) is None
    assert admission.next(room=4) is not None


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="can't wait"):
        Admission(10, 1).add(0, sure(11))


def test_a_large_one_is_not_overtaken_for_ever() -> None:
    admission = Admission(10, 4)
    admission.add(0, sure(6))
    assert admission.next() is not None
    admission.add(1, sure(9))
    running, number = [], 2
    while True:
        admission.add(number, sure(4))
        number += 1
        assert number < 200
        grant = admission.next()
        if grant is None:
            if not running:
                break  # it is waited for: nothing else starts
            admission.end(running.pop())
            continue
        running.append(grant.number)
    admission.end(0)
    grant = admission.next()
    assert grant is not None
    assert grant.number == 1


@given(
    memory=st.integers(1, 100),
    workers=st.integers(1, 6),
    caps=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), max_size=40),
    ends=st.randoms(use_true_random=False),
)
def test_never_over_and_none_lost(
    memory: int, workers: int, caps: list[tuple[int, int]], ends: object
) -> None:
    admission = Admission(memory, workers)
    for number, (size, less) in enumerate(caps):
        size = min(size, memory)
        admission.add(number, Cap(size, max(1, size - less)))
    running: dict[int, int] = {}
    started: list[int] = []
    while admission.waiting or running:
        grant = admission.next()
        if grant is None:
            assert running, "nothing runs, and nothing can start"
            number = ends.choice(sorted(running))  # type: ignore[attr-defined]
            admission.end(number)
            del running[number]
            continue
        started.append(grant.number)
        running[grant.number] = grant.nbytes
        size, less = caps[grant.number]
        size = min(size, memory)
        assert max(1, size - less) <= grant.nbytes <= size
        assert sum(running.values()) <= memory
        assert len(running) <= workers
        assert admission.free_bytes == memory - sum(running.values())
    assert sorted(started) == list(range(len(caps)))


@pytest.mark.parametrize(
    ("cores", "workers", "memory", "cap", "threads"),
    [(2, 2, 10, 5, 1), (2, 2, 10, 6, 2), (2, 1, 10, 1, 2), (64, 64, 100, 25, 16), (4, 8, 8, 1, 1)],
)
def test_threads(cores: int, workers: int, memory: int, cap: int, threads: int) -> None:
    assert threads_for(cores, workers, memory, cap) == threads
