"""Memory sampled while steps run."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from legroom.core.events import Event, listening
from legroom.guarding.showing.sampling import Sampler, seconds_between
from legroom.guarding.showing.sampling import sampler as shared


@pytest.fixture(autouse=True)
def alone() -> None:
    """The sampler of this process may still run for the steps of other tests."""
    shared.end()


class Pool(SimpleNamespace):
    """A device whose memory rises for a moment, and whose own peak somebody resets."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self.looks = 10, 10, 0

    def in_use_bytes(self) -> int:
        self.looks += 1
        return self.now

    def wait_until_seen(self) -> None:
        """Until it was looked at twice more: the first may have begun before the last change."""
        enough, end = self.looks + 2, time.monotonic() + 20
        while self.looks < enough and time.monotonic() < end:
            time.sleep(0.01)
        assert self.looks >= enough

    def peak_bytes(self) -> int:
        return self.peak

    def limit_bytes(self) -> int:
        return 100


def test_the_most_since_the_last_sample_is_told() -> None:
    told: list[Event] = []
    sampler, pool = Sampler(), Pool()
    with listening(told.append):
        sampler.begin(pool)
        pool.wait_until_seen()
        pool.now = pool.peak = 70  # for a moment, between two samples
        pool.wait_until_seen()
        pool.now = pool.peak = 20
        sampler.count(32)
        time.sleep(0.6)  # longer than the time between two samples
        pool.wait_until_seen()
        sampler.tell()
        sampler.end()
    memory = [event.data for event in told if event.name == "memory"]
    assert len(memory) >= 3
    assert max(data["device_bytes"] for data in memory) == 70
    assert memory[-1]["device_bytes"] == 20
    assert memory[-1]["peak_bytes"] == 70
    assert memory[-1]["host_bytes"] > 10**6
    assert (memory[-1]["steps"], memory[-1]["samples"]) == (1, 32)
    (machine,) = [event.data for event in told if event.name == "machine"]
    assert machine["device_limit_bytes"] == 100
    assert machine["versions"]["python"]


def test_it_ends_and_begins_again() -> None:
    sampler, before = Sampler(), threading.active_count()
    sampler.begin(Pool())
    assert threading.active_count() == before + 1
    sampler.end()
    assert threading.active_count() == before
    sampler.count(1)
    assert threading.active_count() == before + 1
    sampler.end()


def test_a_pool_that_fails_ends_the_samples_and_nothing_else() -> None:
    sampler = Sampler()
    sampler.begin(SimpleNamespace(in_use_bytes=lambda: 1 / 0))
    time.sleep(0.1)
    sampler.count(1)
    sampler.end()


def test_a_run_of_days_tells_a_few_thousand_samples() -> None:
    elapsed, count = 0.0, 0
    while elapsed < 1_000_000:
        elapsed += seconds_between(elapsed)
        count += 1
    assert 5000 < count < 10_000


def test_a_step_that_hangs_with_nothing_left_is_told_late_in_a_run_too(monkeypatch) -> None:
    monkeypatch.setattr("legroom.guarding.showing.sampling._HANGS_AFTER", 0.2)
    monkeypatch.setattr("legroom.guarding.showing.sampling._TELL_HANGING_EVERY", 0.2)
    told: list[Event] = []
    sampler, pool = Sampler(), Pool()
    sampler._began = time.monotonic() - 7 * 86_400
    with listening(told.append):
        sampler.begin(pool)
        pool.wait_until_seen()
        time.sleep(0.6)
        assert [event.data["full"] for event in told if event.name == "memory"] == [False]
        pool.now = 97
        time.sleep(0.6)
        pool.wait_until_seen()
        sampler.end()
    assert [event.data["full"] for event in told if event.name == "memory"][1:3] == [True, True]
