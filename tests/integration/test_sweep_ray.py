"""Sweeps on a real cluster of Ray nodes: workers are killed, and a node is taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from legroom.report.journal import read_journal

from .test_sweep_examples import run

CHILD = Path(__file__).with_name("ray_child.py")


def sweep(case: str, folder: str, marks: Path) -> Any:
    marks.mkdir()
    done = subprocess.run(
        [sys.executable, str(CHILD), case, folder, str(marks)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(marks.with_suffix(".json").read_text())


def test_a_killed_worker_and_a_lost_node_cost_no_result(tmp_path: Path) -> None:
    told = sweep("steps", str(tmp_path / "sweep"), tmp_path / "marks")
    trials = told["trials"]
    assert [trial["status"] for trial in trials] == ["finished"] * 5
    assert [trial["result"]["square"] for trial in trials] == [0, 1, 4, 9, 16]
    assert told["nodes"] == 2  # the head, and one of two workers
    # Started again: the one whose worker was killed, the one whose node was lost, and no other.
    assert len(told["marks"]) == 7
    assert told["marks"].count(told["lost"]) == 2
    for trial in trials:
        assert (Path(trial["folder"]) / "trial.json").exists()


def test_a_training_moves_to_another_node_by_its_snapshots(tmp_path: Path) -> None:
    """On storage that is reached by a URL: no machine sees the folder of another."""
    told = sweep("keras", f"file://{tmp_path}/sweep", tmp_path / "marks")
    trials = told["trials"]
    assert [trial["status"] for trial in trials] == ["finished"] * 2
    # The same seed in both, and only one of them was interrupted.
    one, other = (trial["result"]["loss"] for trial in trials)
    assert len(one) == 16
    assert one == pytest.approx(other, rel=1e-6)
    journal = tmp_path / "sweep" / "trials" / f"{told['lost']:06}" / "journal.jsonl"
    assert any(event.name == "resumed" for event in read_journal(journal))
    assert not list((tmp_path / "sweep").rglob("*.snapshot"))


def test_the_example(tmp_path: Path) -> None:
    output, told = run(tmp_path, "ray_sweep.py")
    assert output.count(": finished, loss ") == 2
    assert "2 of 2 trials finished" in told
