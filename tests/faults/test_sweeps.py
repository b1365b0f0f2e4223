"""A sweep of Keras trainings whose trials and whose own process are killed by SIGKILL.

What comes out is what a plain loop over the same configs gives, whatever was killed, sliced, or
queued again for lack of memory. It runs on every backend.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from legroom.core.units import parse_size
from legroom.report.journal import read_journal
from legroom.sweeps.trials.trial import Trial

from .sweep_child import CONFIGS, MEMORY

CHILD = Path(__file__).with_name("sweep_child.py")
TIMEOUT = 400


def started(what: str, folder: Path) -> Any:
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(CHILD), what, str(folder)],
        env={**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **threads},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: Any) -> Any:
    out, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1]), errors


def kept(folder: Path) -> set[int]:
    """The trials that have a snapshot to go on from."""
    return {int(path.parts[-3]) for path in folder.glob("trials/*/snapshots/*.snapshot")}


def wait_for(what: Any) -> Any:
    until = time.monotonic() + TIMEOUT
    while not (seen := what()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return seen


def running(folder: Path) -> dict[int, int]:
    """The processes of the trials that run, by their numbers."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1].endswith(b"sweeps/trials/child.py"):
            journal = Path(json.loads(words[2])["child"]["journal"])
            if journal.is_relative_to(folder):
                found[int(journal.parts[-2])] = int(entry.name)
    return found


def test_a_sweep_is_a_loop_whatever_is_killed(tmp_path: Path) -> None:
    plain = started("loop", tmp_path)
    expected, _ = ended(plain)

    sweep = started("sweep", tmp_path)
    victim = min(wait_for(lambda: kept(tmp_path) & set(running(tmp_path))))
    os.kill(running(tmp_path)[victim], signal.SIGKILL)
    others = wait_for(lambda: (kept(tmp_path) & set(running(tmp_path))) - {victim})
    sweep.kill()  # in the middle of another one
    sweep.communicate()
    wait_for(lambda: not running(tmp_path))

    told, errors = ended(started("sweep", tmp_path))
    assert "the sweep resumes" in errors
    trials = [Trial.from_dict(data) for data in told]
    assert [trial.number for trial in trials] == list(range(len(CONFIGS)))
    assert [trial.status for trial in trials] == ["finished"] * len(CONFIGS), trials
    for trial, plain_result in zip(trials, expected, strict=True):
        assert trial.result["loss"] == pytest.approx(plain_result["loss"], rel=2e-4), trial.number
        assert trial.result["weights"] == pytest.approx(plain_result["weights"], rel=1e-4)
    memory = parse_size(MEMORY)
    for trial in trials:
        assert trial.cap_bytes is not None
        assert trial.cap_bytes <= memory
    resumed = {
        number
        for number in range(len(CONFIGS))
        for event in read_journal(tmp_path / f"trials/{number:06}/journal.jsonl")
        if event.name == "resumed"
    }
    assert {victim, *others} & resumed
    assert never_over(tmp_path, memory)
    # The fifth needs more than there is: it has all of it, and runs in slices.
    assert trials[4].cap_bytes == memory
    assert any(
        event.name == "plan" and event.data["slices"] > 1
        for event in read_journal(tmp_path / "trials/000004/journal.jsonl")
    )
    assert running(tmp_path) == {}


def never_over(folder: Path, memory: int) -> bool:
    """Whether the caps of the trials that ran at once never were more than there is."""
    caps: dict[int, int] = {}
    for event in read_journal(folder / "journal.jsonl"):
        if event.name == "sweep_started":
            caps.clear()
        elif event.name == "trial_started":
            caps[event.data["number"]] = event.data["cap_bytes"]
        elif event.name in ("trial_again", "trial_ended"):
            caps.pop(event.data["number"], None)
        if sum(caps.values()) > memory:
            return False
    return True
