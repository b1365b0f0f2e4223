"""A sweep in a TOML file: what each trial is run with, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from legroom.core.errors import LegroomError
from legroom.sweeps.sweep_file import SweepFile, arguments_of, read_sweep_file


def read(tmp_path: Path, text: str) -> SweepFile:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return read_sweep_file(path)


def test_a_grid_is_every_combination_with_what_is_fixed(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        'script = "train.py"\nmemory = "2GiB"\n[fixed]\nepochs = 3\n'
        '[grid]\nunits = [1, 2]\nact = ["relu", "gelu"]\n',
    )
    assert found.script == tmp_path / "train.py"
    assert found.settings.memory == "2GiB"
    assert Path(found.settings.folder or "") == tmp_path / ".legroom" / "sweep-sweep"
    assert len(found.configs) == 4
    assert list(found.configs) == [
        {"epochs": 3, "units": units, "act": act} for units in (1, 2) for act in ("relu", "gelu")
    ]


def test_a_list_is_one_set_after_the_other(tmp_path: Path) -> None:
    found = read(tmp_path, 'script = "t.py"\n[[list]]\na = 1\n[[list]]\nb = true\n')
    assert list(found.configs) == [{"a": 1}, {"b": True}]
    both = read(tmp_path, 'script = "t.py"\n[[list]]\na = 1\n[[list]]\na = 2\n[grid]\nn = [8, 9]\n')
    assert [tuple(c.values()) for c in both.configs] == [(1, 8), (1, 9), (2, 8), (2, 9)]


def test_draws_are_in_their_ranges_and_the_same_every_time(tmp_path: Path) -> None:
    text = (
        'script = "t.py"\ndraws = 50\n[grid]\nn = [1, 2]\n[random]\n'
        "lr = { low = 1e-4, high = 1e-1, log = true }\nlayers = { low = 1, high = 3 }\n"
        'drop = { low = 0.0, high = 0.5 }\nact = ["relu", "gelu"]\n'
        "units = { low = 8, high = 512, log = true }\n"
    )
    found = read(tmp_path, text)
    configs = list(found.configs)
    assert len(configs) == len(found.configs) == 100
    assert configs == list(found.configs)
    assert {config["layers"] for config in configs} == {1, 2, 3}
    assert {config["act"] for config in configs} == {"relu", "gelu"}
    assert all(1e-4 <= config["lr"] <= 1e-1 for config in configs)
    assert all(
        isinstance(config["units"], int) and 8 <= config["units"] <= 512 for config in configs
    )
    assert 20 < sum(config["lr"] < 3.2e-3 for config in configs) < 80  # evenly by its logarithm
    assert len({config["drop"] for config in configs}) == 100
    other = read(tmp_path, "seed = 1\n" + text)
    assert list(other.configs) != configs


def test_the_example_of_the_help_is_one(tmp_path: Path) -> None:
    from legroom.cli.sweep import sweep

    _, _, example = (sweep.help or "").partition("\b\n")
    found = read(tmp_path, example)
    assert len(found.configs) == 20
    first = next(iter(found.configs))
    assert (first["epochs"], first["units"]) == (20, 64)
    assert 1e-4 <= first["lr"] <= 1e-1


def test_no_table_is_one_trial(tmp_path: Path) -> None:
    assert list(read(tmp_path, 'script = "t.py"').configs) == [{}]


def test_a_hundred_thousand_are_made_as_they_are_asked_for(tmp_path: Path) -> None:
    found = read(
        tmp_path, 'script = "t.py"\ndraws = 10000000\n[random]\nx = { low = 0, high = 9 }\n'
    )
    assert len(found.configs) == 10_000_000
    assert next(iter(found.configs))["x"] in range(10)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"units": 64, "lr": 0.5}, ["--units", "64", "--lr", "0.5"]),
        ({"batch-size": 8, "amp": True, "debug": False}, ["--batch-size", "8", "--amp"]),
        ({"layers": [8, 4]}, ["--layers", "8", "4"]),
        ({}, []),
    ],
)
def test_a_config_as_options(config: dict[str, Any], words: list[str]) -> None:
    assert arguments_of(config) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = ", "is no sweep"),
        ("[grid]\na = [1]\n", 'a line like script = "train.py"'),
        ('script = "t.py"\ngrids = 1\n', "'grids' is not known"),
        ('script = "t.py"\n[grid]\na = 1\n', "a in [grid] must be a list"),
        ('script = "t.py"\n[grid]\na = []\n', "a in [grid] must be a list"),
        ('script = "t.py"\ngrid = 3\n', "grid must be a table"),
        ('script = "t.py"\nlist = [1]\n', "[[list]]"),
        ('script = "t.py"\n[random]\na = [1]\n', "draws = 20"),
        ('script = "t.py"\ndraws = 0\n', "draws must be"),
        ('script = "t.py"\ndraws = 2\n[random]\na = 3\n', "a in [random]"),
        ('script = "t.py"\ndraws = 2\n[random]\na = { low = 2, high = 1 }\n', "a in [random]"),
        ('script = "t.py"\ndraws = 2\n[random]\na = { low = 0, high = 1, log = true }\n', "a in ["),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(LegroomError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "sweep.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LegroomError, match="can't be read"):
        read_sweep_file(tmp_path / "none.toml")
