"""Sweeps as a user runs them: real processes, that end in every way there is."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import legroom
from legroom.core.errors import BadBudgetError, LegroomError
from legroom.report.journal import read_journal

CHILD = Path(__file__).with_name("sweep_child.py")
TIMEOUT = 240


def started(case: str, folder: Path, *arguments: object, **variables: str) -> Any:
    return subprocess.Popen(
        [sys.executable, str(CHILD), case, str(folder), *map(str, arguments)],
        env={**os.environ, "NO_COLOR": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(case: str, folder: Path, *arguments: object, **variables: str) -> tuple[list[Any], str]:
    process = started(case, folder, *arguments, **variables)
    out, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()], errors


def trial_processes(folder: Path) -> list[int]:
    """The processes of trials that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sweeps/trials/child.py" in command and str(folder).encode() in command:
                found.append(int(entry.name))
    return found


def test_trials_end_in_every_way_and_the_others_finish(tmp_path: Path) -> None:
    (ends, imported), errors = done("moods", tmp_path)
    assert imported == []  # the sweep itself needs no framework
    assert ends["fine"] == ["finished", "fine", "", 1]
    assert ends["raises"] == ["failed", None, "ValueError: this config is wrong", 1]
    assert ends["exits"][:3] == ["failed", None, "SystemExit: out of patience"]
    assert ends["leaves"][0] == "failed"
    assert "exit code 7 before" in ends["leaves"][2]
    assert ends["hangs"][0] == "timed_out"
    assert "time_limit" in ends["hangs"][2]
    assert ends["crashes"][0] == "failed"
    assert "SIGABRT" in ends["crashes"][2]
    assert ends["crashes"][3] == 2  # once more, so that running out would be an error
    assert ends["forks"][:2] == ["finished", "left one behind"]
    assert ends["killed"] == ["finished", "after a kill", "", 2]
    assert ends["killed always"][0] == "failed"
    assert ends["killed always"][3] == 4
    assert ends["prints"][1].startswith("<module 'json'")
    assert "trial 1 failed after" in errors
    assert "this config is wrong" in errors
    assert "4 of 10 trials finished" in errors
    log = (tmp_path / "moods/trials/000009/log.txt").read_text()
    assert log == "out ääääääääää\nerr\n"
    assert "ValueError" in (tmp_path / "moods/trials/000001/log.txt").read_text()
    assert trial_processes(tmp_path) == []


@pytest.mark.parametrize("kind", ["generator", "list"])
def test_a_hundred_thousand_configs_start_at_once(tmp_path: Path, kind: str) -> None:
    ((seen,), _) = done("many", tmp_path, kind)
    assert seen["seconds"] < 2
    assert seen["peak"] < 10 * 2**20
    if kind == "generator":
        assert seen["read"] < 1000  # they are read as trials start
    assert trial_processes(tmp_path) == []


def grown(folder: Path, few: int, many: int) -> int:
    ((seen,), _) = done("growing", folder, few, many)
    assert seen["few"][1] == pytest.approx(seen["many"][1], abs=6)  # open files: those that run
    return int(seen["many"][0] - seen["few"][0])


def test_the_memory_of_a_sweep_does_not_grow(tmp_path: Path) -> None:
    assert grown(tmp_path, 5, 40) < 1500  # KiB


@pytest.mark.long
def test_the_memory_of_a_long_sweep_does_not_grow(tmp_path: Path) -> None:
    assert grown(tmp_path, 5, 200) < 2000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_order_and_resumed(tmp_path: Path, number: signal.Signals) -> None:
    sweep = started("squares", tmp_path, PAUSE="0.4")
    wait_for(lambda: ended(tmp_path) >= 3)
    sweep.send_signal(number)
    _, errors = sweep.communicate(timeout=30)
    assert sweep.returncode == -number
    assert "Run the same sweep again to resume it" in errors
    assert trial_processes(tmp_path) == []
    before = ended(tmp_path)
    assert before < 12
    ((results,), errors) = done("squares", tmp_path)
    assert "the sweep resumes" in errors
    assert [result["square"] for result in results] == [n**2 for n in range(12)]
    assert none_twice(tmp_path)


def test_twelve_trials_killed_at_random_are_those_of_an_undisturbed_sweep(tmp_path: Path) -> None:
    """Kills of the sweep's own process and of its trials, wherever they are."""
    ((expected,), _) = done("squares", tmp_path / "undisturbed")
    rng = random.Random(24)
    kills = 0
    while kills < 5:
        sweep = started("squares", tmp_path, PAUSE="0.3")
        time.sleep(rng.uniform(0.5, 2.0))
        if trials := trial_processes(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(trials), signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.5))
        sweep.kill()
        sweep.communicate()
        kills += 1
        wait_for(lambda: trial_processes(tmp_path) == [])  # they die with it
        if ended(tmp_path) == 12:
            break
    ((results,), _) = done("squares", tmp_path)
    assert results == expected  # random numbers, too
    assert none_twice(tmp_path)


def test_a_full_disk_costs_no_result(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=72k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("tmpfs can't be mounted here")
    try:
        process = started("squares", disk)
        out, errors = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, errors
        results = json.loads(out)
        finished = [result for result in results if result is not None]
        assert len(results) == 12
        assert len(finished) > 0
        assert "No space left on device" in errors
        assert "Traceback" not in errors
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def wait_for(what: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def events(folder: Path) -> list[Any]:
    return read_journal(folder / "kept" / "journal.jsonl")


def ended(folder: Path) -> int:
    return len(list(folder.glob("kept/trials/*/trial.json")))


def none_twice(folder: Path) -> bool:
    """Whether no trial was started again after it had ended."""
    over: set[int] = set()
    for event in events(folder):
        if event.name == "trial_started" and event.data["number"] in over:
            return False
        if event.name == "trial_ended":
            over.add(event.data["number"])
    # A kill may come between the result and the event that tells of it.
    return ended(folder) == 12


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((3, [1]), {}, TypeError, "runs a function"),
        ((abs, {"a": 1}), {}, TypeError, "once for each config"),
        ((abs, 7), {}, TypeError, "Received: int"),
        ((abs, [1], "cloud"), {}, LegroomError, "There is no engine 'cloud'"),
        ((abs, [1]), {"workers": 0}, LegroomError, "workers=0"),
        ((abs, [1]), {"time_limit": 0}, LegroomError, "time_limit=0"),
        ((abs, [1]), {"memory": "lots"}, BadBudgetError, "can't be read"),
        ((abs, [1]), {"memory": "1MiB"}, BadBudgetError, "itself needs more"),
    ],
)
def test_what_can_not_be_swept(
    tmp_path: Path, arguments: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        legroom.sweep(*arguments, folder=tmp_path, **options)


def test_what_can_not_be_sent_is_said(tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(LegroomError, match="can't be sent to another process"):
        legroom.sweep(lambda config: lock, [1], folder=tmp_path)
    one, other = legroom.sweep(str, [lock, 1], folder=tmp_path, memory="1GiB")
    assert one.status == "failed"
    assert "Its config can't be sent to another process" in one.error
    assert other.result == "1"


def test_no_configs_are_no_trials(tmp_path: Path) -> None:
    assert legroom.sweep(abs, [], folder=tmp_path, memory="1GiB") == []
