"""`legroom sweep` as a user calls it, with scripts that need no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int)
parser.add_argument("--lr", type=float, default=0.0)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
print("in", os.getcwd(), __name__)
if args.fail:
    sys.exit("it failed as it was told to")
time.sleep(0.2)
print(json.dumps({"square": args.n ** 2, "lr": args.lr}))
print("the last line is no JSON")
"""


def legroom(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "legroom", "sweep", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sweep.toml").write_text(
        'script = "train.py"\nmemory = "1GiB"\ndraws = 2\n[grid]\nn = [3, 4]\n'
        "[random]\nlr = { low = 0.1, high = 1.0 }\n"
    )
    return tmp_path


def test_a_script_with_many_sets_of_options(place: Path) -> None:
    done = legroom("sweep.toml", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["kind"], document["version"]) == ("Sweep", 1)
    trials = document["trials"]
    assert [trial["result"]["square"] for trial in trials] == [9, 9, 16, 16]
    assert [trial["result"]["lr"] for trial in trials] == [t["config"]["lr"] for t in trials]
    assert len({trial["config"]["lr"] for trial in trials}) == 4
    log = (place / ".legroom/sweep-sweep/trials/000000/log.txt").read_text()
    assert f"in {place} __main__" in log


def test_a_table_for_people_and_an_exit_code(place: Path) -> None:
    (place / "sweep.toml").write_text(
        'script = "train.py"\nmemory = "1GiB"\n[[list]]\nn = 5\n[[list]]\nn = 6\nfail = true\n'
    )
    done = legroom("sweep.toml", cwd=place)
    assert done.returncode == 1
    assert "square=25" in done.stdout
    assert "failed" in done.stdout
    assert "trial 1 failed after" in done.stderr
    assert "it failed as it was told to" in done.stderr
    assert "1 of 2 trials finished" in done.stderr


def test_a_dry_run_tells_what_is_packed_and_how_long_it_takes(place: Path) -> None:
    done = legroom("--dry-run", "sweep.toml", "--workers", "2", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    forecast = json.loads(done.stdout)
    assert forecast["kind"] == "SweepForecast"
    trials = forecast["trials"]
    assert sorted(trial["number"] for trial in trials) == [0, 1, 2, 3]
    assert [trial["tried"] for trial in sorted(trials, key=lambda t: t["number"])] == [
        True, False, True, False,
    ]  # fmt: skip
    assert forecast["most_at_once"] == 2
    assert forecast["most_bytes"] <= forecast["memory_bytes"] == 2**30
    took = [trial["seconds"] for trial in trials]
    assert sum(took) / 2 <= forecast["seconds"] + 1e-6
    assert forecast["seconds"] <= sum(took)
    assert not (place / ".legroom").exists()  # a sweep that is there is not touched
    told = legroom("--dry-run", "sweep.toml", cwd=place)
    assert "4 trials, up to" in told.stdout
    assert "of 1.00 GiB: about" in told.stdout
    assert "trying trial 0 (1 of 2)" in told.stderr


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        ('script = "none.py"', "There is no file", 2),
        ('script = "train.py"\n[grid]\nn = 3', "must be a list", 1),
        ('script = "train.py"\nmemory = "much"', "can't be read", 2),
        ("", 'script = "train.py"', 1),
    ],
)
def test_what_is_wrong_is_said(place: Path, text: str, words: str, code: int) -> None:
    (place / "sweep.toml").write_text(text)
    done = legroom("sweep.toml", cwd=place)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_help_teaches(place: Path) -> None:
    done = legroom("--help", cwd=place)
    assert "grid = {" in done.stdout
    assert "--dry-run" in done.stdout
