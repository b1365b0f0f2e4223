"""A sweep on paper: how trials are packed, and how long it takes; and the table in a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.core.events import EpochStarted, MemorySampled
from legroom.report.screen.sweep_table import Row, SweepPicture, table_lines
from legroom.sweeps.packing.needs import Cap
from legroom.sweeps.packing.on_paper import Expected, Placed, pack
from legroom.sweeps.packing.rehearsal import whole_seconds


def test_small_ones_fill_the_gaps_beside_large_ones() -> None:
    trials = [
        Expected(0, Cap(3, 3), 10.0),
        Expected(1, Cap(7, 7), 20.0),
        Expected(2, Cap(3, 3), 10.0),
    ]
    packing = pack(trials, 10, 4)
    assert packing.trials == (Placed(1, 7, 0, 20), Placed(0, 3, 0, 10), Placed(2, 3, 10, 20))
    assert (packing.seconds, packing.most_bytes, packing.most_at_once) == (20, 10, 2)


def test_nothing_takes_no_time() -> None:
    assert pack([], 10, 2).seconds == 0


@given(
    trials=st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 100.0)), min_size=1, max_size=30),
    workers=st.integers(1, 5),
)
def test_it_is_no_longer_than_one_after_the_other_and_no_shorter_than_can_be(
    trials: list[tuple[int, float]], workers: int
) -> None:
    expected = [Expected(n, Cap(size, size), time) for n, (size, time) in enumerate(trials)]
    packing = pack(expected, 50, workers)
    times = [time for _, time in trials]
    assert packing.seconds <= sum(times) * (1 + 1e-9)
    area = sum(size * time for size, time in trials) / 50
    least = max(*times, sum(times) / workers, area)
    assert packing.seconds >= least * (1 - 1e-9)
    assert packing.most_bytes <= 50
    assert packing.most_at_once <= workers
    assert sorted(placed.number for placed in packing.trials) == list(range(len(trials)))


def sampled(at: float, steps: int) -> MemorySampled:
    return MemorySampled(at=at, steps=steps)


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        # Five seconds to start, ten steps a second, three epochs of a hundred steps.
        (
            [
                EpochStarted(at=104, epoch=0, epochs=3, steps=100),
                sampled(105, 1),
                sampled(107, 21),
            ],
            5 + 299 / 10,
        ),
        # Keras did not know how many steps an epoch has, but one has ended.
        (
            [
                EpochStarted(at=104, epoch=0, epochs=2),
                sampled(105, 1),
                sampled(107, 21),
                EpochStarted(at=108, epoch=1, epochs=2, steps_done=30),
            ],
            5 + 59 / 10,
        ),
        ([EpochStarted(at=104, epoch=0, epochs=2), sampled(105, 1), sampled(107, 21)], None),
        ([sampled(105, 1), sampled(107, 21)], None),
        ([EpochStarted(at=104, epoch=0, epochs=3, steps=100), sampled(105, 1)], None),
        ([], None),
    ],
)
def test_how_long_a_training_takes_by_its_first_steps(
    events: list[EpochStarted | MemorySampled], seconds: float | None
) -> None:
    assert whole_seconds(events, 100.0) == pytest.approx(seconds)


def test_the_table_fits_the_terminal() -> None:
    rows = tuple(
        Row(n, f"units={n}, lr=0.001, and\n{'x' * 200}", "epoch 3 of 10", 2**30, 61.0)
        for n in range(40)
    )
    picture = SweepPicture(rows, 7, 12, 48 * 2**30, 8 * 2**30)
    lines = table_lines(picture, 60, 12, left=90.0)
    assert all(len(line) < 60 for line in lines)
    assert len(lines) <= 12
    assert lines[0].startswith("7 done, 40 run, 12 wait | ")
    assert "units=0" in lines[1]
    assert "and 32 more" in lines[-1]
    wide = table_lines(SweepPicture(rows[:1], 0, None, 2**30, 0), 200, 50, left=None)
    assert len(wide) == 2
    assert "wait" not in wide[0]
    assert "1 min 1 s" in wide[1]
