"""The wheel, built and installed beside nothing else: it has all that legroom needs to run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SCRIPT = """\
import legroom, keras, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = legroom.fit(model, np.ones((32, 4)), np.ones((32, 1)), slice_size=8, verbose=0)
print(legroom.__file__, history.legroom.samples_seen, history.legroom.sliced)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True, timeout=300,
        env={**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
    )  # fmt: skip
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> dict[str, str]:
    """The environment of a process that finds this legroom before that of the checkout."""
    target = wheel.parent / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--target", str(target), str(wheel)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return {**os.environ, "PYTHONPATH": str(target), "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "80"}


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    there = set(zipfile.ZipFile(wheel).namelist())
    assert {name.removeprefix("src/") for name in listed} <= there
    assert not [name for name in there if name.startswith(("tests", "docs"))]


def test_it_trains_and_shows_pages(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain = said("train.py")
    assert plain == said("-m", "legroom", "run", "--report", "about", "train.py")
    where, seen, sliced = plain.split()
    assert where.startswith(installed["PYTHONPATH"])
    assert (seen, sliced) == ("32", "True")
    assert "</html>" in (tmp_path / "about/report.html").read_text()
    assert "tensors kept" in said("-m", "legroom", "explain", "LR105")
