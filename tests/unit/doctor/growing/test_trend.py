"""Growth, warm-up and noise told apart: tables, and properties."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.doctor.growing.trend import Growth, mann_kendall, test_growth, theil_sen

MB = 1_000_000


def series(values: list[float]) -> list[tuple[int, int]]:
    return [(k, int(value)) for k, value in enumerate(values)]


def judged(shape: Callable[[int], float], n: int, noise: float = 0, seed: int = 0) -> Growth:
    rng = random.Random(seed)
    return test_growth(series([600 * MB + shape(k) + rng.gauss(0, noise) for k in range(n)]))


@pytest.mark.parametrize(
    ("name", "shape", "n"),
    [
        ("steady", lambda k: 30 * MB * k, 10),
        ("small but steady", lambda k: 0.4 * MB * k, 10),
        ("after a large warm-up", lambda k: 200 * MB * (k > 0) + 5 * MB * k, 10),
        ("long", lambda k: 0.1 * MB * k, 500),
        ("every other iteration", lambda k: 6 * MB * (k // 2), 20),
    ],
)
def test_what_grows(name: str, shape: Callable[[int], float], n: int) -> None:
    assert judged(shape, n).grows, name


@pytest.mark.parametrize(
    ("name", "shape", "n"),
    [
        ("flat", lambda k: 0, 10),
        ("one jump", lambda k: 300 * MB * (k >= 6), 12),
        ("warm-up", lambda k: 100 * MB * min(k, 4), 12),
        ("saturating", lambda k: 100 * MB * (1 - 0.5**k), 12),
        ("buffer that fills in the first half", lambda k: 10 * MB * min(k, 20), 40),
        ("shrinking", lambda k: -5 * MB * k, 12),
        ("sawtooth", lambda k: 20 * MB * (k % 5), 30),
        ("every fifth is larger", lambda k: 80 * MB * (k % 5 == 4), 30),
        ("history of floats", lambda k: 400 * k, 100),
    ],
)
def test_what_does_not(name: str, shape: Callable[[int], float], n: int) -> None:
    assert not judged(shape, n).grows, name


def test_a_warm_up_is_called_so() -> None:
    assert judged(lambda k: 100 * MB * min(k, 2), 12).verdict == "warmed up"
    assert judged(lambda k: 0, 12).verdict == "steady"
    assert judged(lambda k: MB * k, 6).verdict == "too few"


def test_the_slope_is_bytes_an_iteration() -> None:
    seen = judged(lambda k: 5 * MB * k, 20, noise=2 * MB)
    assert seen.grows
    assert seen.slope == pytest.approx(5 * MB, rel=0.15)
    assert seen.probability < 0.001


def test_noise_is_rarely_taken_for_growth() -> None:
    """The stated error probability bounds it: 1 % at most, less for the other conditions."""
    alarms = sum(judged(lambda k: 0, 12, noise=20 * MB, seed=seed).grows for seed in range(600))
    walks = 0
    for seed in range(300):
        rng = random.Random(seed)
        heights = itertools.accumulate(rng.choice([-1, 1]) * MB for _ in range(12))
        walks += test_growth(series([600 * MB + height for height in heights])).grows
    assert alarms <= 6
    assert walks <= 15, "a random walk drifts without end; nearly all are told apart"


def test_the_exact_tail_by_counting() -> None:
    for n in (3, 4, 5):
        for values in itertools.permutations(range(n)):
            score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
            as_clear = sum(
                sum((b > a) - (b < a) for a, b in itertools.combinations(other, 2)) >= score
                for other in itertools.permutations(range(n))
            )
            total = len(list(itertools.permutations(range(n))))
            assert mann_kendall(values) == pytest.approx(as_clear / total)


@given(st.integers(1, 50), st.integers(-(10**9), 10**9))
def test_a_line_has_its_own_slope(slope: int, start: int) -> None:
    line = [(k, start + slope * k) for k in range(8)]
    assert theil_sen(line) == slope


@given(st.lists(st.integers(0, 10**9), min_size=6, max_size=40))
def test_the_reverse_of_what_grows_does_not(values: list[int]) -> None:
    both = test_growth(series(list(values))).grows, test_growth(series(values[::-1])).grows
    assert both != (True, True)
