"""`legroom plan` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import keras, numpy as np
print("made", sys.argv[1:])
model = keras.Sequential([keras.Input((40, 40, 3)), keras.layers.Conv2D(32, 3, activation="relu"),
                          keras.layers.Flatten(), keras.layers.Dense(4)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
try:
    model.fit(np.zeros((640, 40, 40, 3), "float32"), np.zeros(640, "int32"), batch_size=320)
except Exception:
    pass
open("trained", "w").close()
"""


def legroom(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "legroom", "plan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_script_is_run_up_to_its_first_fit(tmp_path, monkeypatch, backend):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    (tmp_path / "train.py").write_text(SCRIPT)
    done = legroom("--source", "traced", "train.py", "--fast", "--memory", "60MB", "--json",
                   cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["kind"] == "Plan"
    assert plan["batch_size"] == 320
    assert plan["budget_bytes"] == 60_000_000
    # 38 x 38 x 32 activations of four bytes, and their gradients: 320 samples need 118 MB.
    assert plan["estimate"]["peak_bytes"] > 320 * 38 * 38 * 32 * 4
    assert 1 < plan["chosen"]["slice_size"] < 320
    assert "made ['--fast']" in done.stderr
    assert not (tmp_path / "trained").exists()


def test_nothing_fits(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = legroom("--memory", "5MB", "--source", "traced", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "one sample at a time" in done.stderr
    assert "provide that much memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_without_a_fit(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')")
    done = legroom("train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "without calling model.fit" in done.stderr


def test_a_saved_model_as_a_table(tmp_path):
    code = (
        "import keras; m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(900), "
        "keras.layers.Dense(3)]); m.compile('adam', 'mse'); m.save('m.keras')"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    done = legroom("--model", "m.keras", "--batch-size", "16", "--device", "t4", "--source",
                   "traced", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "batch 16, in 14.3 GB" in done.stdout
    assert "as TensorFlow's own executor runs it" in done.stdout
    assert "as it is" in done.stdout
    assert "chosen" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--app", "ResNet51"], 1, "has no 'ResNet51'"),
        (["--app", "ResNet50", "--device", "a100-8"], 2, "Did you mean 'a100-80'"),
        (["--app", "ResNet50", "--device", "t4", "--memory", "1GiB"], 2, "not both"),
        (["--app", "ResNet50", "--memory", "much"], 2, "can't be read"),
        (["--model", "nothing.keras"], 2, "is not in"),
        (["--model", "cut.keras"], 1, "is damaged"),
        (["--model", "."], 2, "is a folder"),
        (["--app", "VGG16", "--batch-size", "0"], 2, "0 is not in the range x>=1"),
        (["nothing.py"], 2, "There is no file"),
        ([], 2, "Give one of"),
        (["--mmeory", "1GiB", "--app", "VGG16"], 2, "--mmeory"),
        (["--app", "VGG16", "--model", "m.keras"], 2, "--model and --app"),
    ],
)
def test_mistakes(arguments, code, words, tmp_path):
    (tmp_path / "cut.keras").write_bytes(b"PK\x03\x04" + bytes(100))
    done = legroom(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_the_same_question_is_answered_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "answers"))
    asked = ("--app", "MobileNetV2", "--batch-size", "16", "--device", "t4", "--source", "traced",
             "--json")  # fmt: skip
    first = legroom(*asked, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    # No TensorFlow is imported for it, so that it is there within a second.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    second = legroom(*asked, cwd=tmp_path)
    assert second.stdout == first.stdout
    assert "this plan was made on" in second.stderr
    imported = {line.rpartition("|")[2].strip() for line in second.stderr.splitlines()}
    assert "legroom" in imported
    assert not {"keras", "numpy", "tensorflow"} & imported
    monkeypatch.delenv("PYTHONPROFILEIMPORTTIME")
    assert "this plan was made on" not in legroom(*asked, "--again", cwd=tmp_path).stderr
