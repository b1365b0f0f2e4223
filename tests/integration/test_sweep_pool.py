"""Trials that a search asks for one by one, from several threads: they share one admission."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from legroom.core.errors import BadBudgetError, LegroomError
from legroom.report.journal import read_journal
from legroom.sweeps.opening import Settings
from legroom.sweeps.pool import TrialPool


def test_threads_share_the_memory(tmp_path: Path) -> None:
    def train(config: Any) -> Any:
        time.sleep(0.3)
        if config == 3:
            raise ValueError("three")
        return config * 10

    settings = Settings(memory="1GiB", workers=2, folder=tmp_path)
    with TrialPool(train, settings) as pool, ThreadPoolExecutor(5) as threads:
        trials = list(threads.map(pool.run, range(5)))
    assert [trial.config for trial in trials] == list(range(5))
    assert [trial.result for trial in trials] == [0, 10, 20, None, 40]
    assert trials[3].error == "ValueError: three"
    at_once = most = 0
    for event in read_journal(tmp_path / "journal.jsonl"):
        at_once += {"trial_started": 1, "trial_ended": -1}.get(event.name, 0)
        most = max(most, at_once)
    assert most == 2


def test_closing_ends_what_runs(tmp_path: Path) -> None:
    def train(config: Any) -> Any:
        time.sleep(600)

    pool = TrialPool(train, Settings(memory="1GiB", folder=tmp_path))
    seen: list[BaseException] = []

    def ask() -> None:
        try:
            pool.run(1)
        except LegroomError as error:
            seen.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not list(tmp_path.glob("trials/*/log.txt")):
        time.sleep(0.05)
    began = time.monotonic()
    pool.close()
    asking.join()
    assert time.monotonic() - began < 15
    assert "its pool was closed" in str(seen[0])
    with pytest.raises(LegroomError, match="its pool was closed"):
        pool.run(2)


def test_what_is_wrong_is_raised_where_it_is_asked_for(tmp_path: Path) -> None:
    with (
        TrialPool(str, Settings(memory="1MiB", folder=tmp_path)) as pool,
        pytest.raises(BadBudgetError, match="itself needs more"),
    ):
        pool.run(1)
