"""`legroom check` names what is wrong with each example that has something planted in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .conftest import LEGROOM

PLANTED = Path(__file__).parents[2] / "examples" / "planted"

# What is to be found, where it is planted: a word of that line.
EXPECTED = {
    "augmented_then_cached": {"LR207": "model.fit"},
    "doubles_by_accident": {"LR201": "model.fit", "LR208": "model.fit"},
    "ever_new_shapes": {"LR103": "@tf.function"},
    "flatten_then_dense": {"LR301": "model.fit"},
    "generator_each_time": {"LR106": "from_generator"},
    "outputs_kept": {"LR105": "predictions.append"},
    "search_over_units": {"LR101": "for units in"},
    "shuffle_everything": {"LR201": "model.fit", "LR202": "model.fit", "LR209": "model.fit"},
}
SHORT = ("shuffle_everything", "flatten_then_dense")


def test_every_one_is_tested_and_listed() -> None:
    assert {path.stem for path in PLANTED.glob("*.py")} == set(EXPECTED)
    listed = (PLANTED.parent / "README.md").read_text()
    for name, ids in EXPECTED.items():
        (row,) = [line for line in listed.splitlines() if f"`planted/{name}.py`" in line]
        assert all(id in row for id in ids), name


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
        for name in EXPECTED
    ],
)  # fmt: skip
def test_it_is_named(name: str) -> None:
    script = PLANTED / f"{name}.py"
    done = subprocess.run(
        [LEGROOM, "check", "--json", str(script)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr[-3000:]
    found = json.loads(done.stdout)["findings"]
    warned = {f["id"]: f["place"] for f in found if f["severity"] == "warning"}
    assert set(warned) == set(EXPECTED[name])
    lines = script.read_text().splitlines()
    for id, place in warned.items():
        line = int(place.rpartition(":")[2])
        # A call, or a function, of several lines is named by one of them.
        near = "\n".join(lines[max(0, line - 2) : line + 1])
        assert EXPECTED[name][id] in near, (id, near)
    assert "legroom" not in script.read_text()
