"""Trials as records, their seeds and configs; the folder they are kept in; code fingerprints."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legroom.core.errors import SnapshotError
from legroom.sweeps.keeping.code import code_of_function
from legroom.sweeps.keeping.folder import SweepFolder, SweepIdentity
from legroom.sweeps.trials.trial import Trial, config_digest, readable, trial_seed

IDENTITY = SweepIdentity("train", code="abc", seed=1)


@dataclasses.dataclass
class Config:
    units: int


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": 1, 2: (3.5, None, True, "x")}, {"a": 1, "2": [3.5, None, True, "x"]}),
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ({"loss": np.array([0.5, 1.0])}, {"loss": [0.5, 1.0]}),
        (float("nan"), "nan"),
        (Config(3), {"units": 3}),
    ],
)
def test_results_become_json(value: Any, kept: Any) -> None:
    assert readable(value) == kept
    json.dumps(kept, allow_nan=False)


def test_anything_else_is_kept_as_its_text_without_addresses() -> None:
    assert readable(object()) == "<object object>"


def test_a_history_is_its_dict() -> None:
    class History:
        def __init__(self) -> None:
            self.history = {"loss": [1.0, np.float32(0.5)]}

    assert readable(History()) == {"loss": [1.0, 0.5]}


def test_records_go_to_json_and_back() -> None:
    trial = Trial(3, {"a": 1}, "finished", result={"loss": 0.5}, seconds=1.5, folder="/x")
    assert Trial.from_json(trial.to_json()) == trial
    assert trial.log == Path("/x/log.txt")


def test_seeds_differ_and_stay() -> None:
    seeds = [trial_seed(0, number) for number in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [trial_seed(0, number) for number in range(100)]
    assert trial_seed(1, 0) != trial_seed(0, 0)


def test_configs_are_told_apart() -> None:
    assert config_digest({"a": 1, "b": 2}) == config_digest({"b": 2, "a": 1})
    assert config_digest({"a": 1}) != config_digest({"a": 2})


def test_an_interrupted_sweep_is_found_again(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    assert folder.open(IDENTITY) is None
    assert not folder.resumes
    folder.begin(7, {"n": 7}, seed=1)
    (folder.snapshots(7) / "training-0000-000000000.snapshot").write_bytes(b"x")
    trial = Trial(7, {"n": 7}, "finished", result=1.5, folder=str(folder.trial(7)))
    folder.end(trial)
    assert not folder.snapshots(7).exists()
    folder.begin(8, {"n": 8}, seed=1)
    kept = folder.snapshots(8) / "training-0000-000000000.snapshot"
    kept.write_bytes(b"x")
    folder.close(IDENTITY, ended=False)

    again = SweepFolder(tmp_path / "sweep")
    assert again.open(dataclasses.replace(IDENTITY, started=0.0)) is None
    assert again.resumes
    assert again.finished(7, {"n": 7}) == trial
    assert again.finished(7, {"n": 70}) is None  # another config in its place
    assert again.finished(8, {"n": 8}) is None
    again.begin(8, {"n": 8}, seed=1)
    assert kept.exists()
    again.begin(8, {"n": 80}, seed=1)
    assert not kept.exists()
    again.close(IDENTITY, ended=True)

    third = SweepFolder(tmp_path / "sweep")
    assert third.open(IDENTITY) is None
    assert not third.resumes
    assert not third.trial(7).exists()
    assert (tmp_path / "sweep" / "previous" / "trials" / "000007" / "trial.json").exists()
    third.close(IDENTITY, ended=False)


def test_another_sweep_puts_an_interrupted_one_aside(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.open(IDENTITY)
    folder.begin(0, 0, seed=1)
    folder.close(IDENTITY, ended=False)
    other = SweepFolder(tmp_path)
    aside = other.open(dataclasses.replace(IDENTITY, code="edited"))
    assert aside is not None
    assert aside.code == "abc"
    assert not other.resumes
    assert (tmp_path / "previous" / "trials" / "000000").is_dir()
    other.close(IDENTITY, ended=False)


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.open(IDENTITY)
    with pytest.raises(SnapshotError, match="Another sweep works in"):
        SweepFolder(tmp_path).open(IDENTITY)
    folder.close(IDENTITY, ended=False)


def test_a_damaged_result_is_none(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.open(IDENTITY)
    folder.begin(0, 0, seed=1)
    folder.close(IDENTITY, ended=False)
    (folder.trial(0) / "trial.json").write_text('{"kind": "Trial", "ver')
    again = SweepFolder(tmp_path)
    again.open(IDENTITY)
    assert again.finished(0, 0) is None
    again.close(IDENTITY, ended=False)


def code(source: str, name: str = "train") -> str:
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec(source, space)
    return code_of_function(space[name])


BASE = "def helper(x): return x + 1\nLIMIT = 3\ndef train(c): return helper(c) + LIMIT\n"


@pytest.mark.parametrize(
    ("source", "same"),
    [
        (BASE, True),
        ("\n\n# a comment\n" + BASE + "configs = [1, 2]\ndef other(): pass\n", True),
        (BASE.replace("x + 1", "x + 2"), False),
        (BASE.replace("LIMIT = 3", "LIMIT = 4"), False),
        (BASE.replace("helper(c) +", "helper(c) -"), False),
        (BASE.replace("train(c)", "train(c, k=1)"), False),
    ],
)
def test_edited_code_is_noticed_and_the_rest_is_not(source: str, same: bool) -> None:
    assert (code(source) == code(BASE)) == same


def test_closures_and_partials_are_code_too() -> None:
    def made(n: int) -> Any:
        return lambda c: c + n

    def scaled(c: int, by: int) -> int:
        return c * by

    assert code_of_function(made(1)) == code_of_function(made(1))
    assert code_of_function(made(1)) != code_of_function(made(2))
    two, three = functools.partial(scaled, by=2), functools.partial(scaled, by=3)
    assert code_of_function(two) != code_of_function(three)
