"""``legroom explain`` with the model at hand: saved, live, and under ``legroom run``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")
CHILD = Path(__file__).parent / "explain_child.py"
OOM = (
    "OOM when allocating tensor with shape[{shape}] and type float on /job:localhost/replica:0/"
    "task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{{{node {node}}}}}]]\n"
)
MB = 10**6


def explain(log: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LEGROOM, "explain", str(log), *args], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A folder of saved models, what the live ones were told, and the log of their failure."""
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout), done.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(OOM.format(shape="64,60,60,64", node="pictures/second/convolution"))
    return path


def predicted(diagnosis: dict[str, Any], words: str) -> int:
    """What the remedy with these words in it is predicted to save."""
    found = [
        remedy for remedy in diagnosis["remedies"]
        if words in remedy["text"] + str(remedy["code"]) + str(remedy["command"])
    ]  # fmt: skip
    assert len(found) == 1, (words, diagnosis["remedies"])
    assert found[0]["predicted"]
    assert found[0]["bytes_saved"] > 0
    return int(found[0]["bytes_saved"])


def test_a_live_model_explains_its_failure(models: tuple[Path, dict[str, Any], str]) -> None:
    """The failure is real: 256 images under a cap of 300 MiB."""
    fit = models[1]["fit"]
    assert (fit["is_oom"], fit["framework"]) == (True, "tensorflow")
    assert fit["layer"] in ("first", "second", "max_pooling2d")
    assert "batch 256" in fit["story"]
    assert "A training step of the model pictures on a batch of 256" in fit["story"]
    for words in ("legroom run", "batch_size=", "Half", "smaller input", "Flatten", "SGD"):
        predicted(fit, words)
    assert models[1]["shown"].startswith("<div")


def test_explaining_takes_no_device_memory(models: tuple[Path, dict[str, Any], str]) -> None:
    """The pool is full when it is asked: only what constants of a trace take is taken."""
    assert abs(models[1]["allocated"]) < 1 * MB


def test_models_of_other_kinds(models: tuple[Path, dict[str, Any], str]) -> None:
    own, unbuilt = models[1]["own"], models[1]["unbuilt"]
    assert own["layer"] == "dense"
    assert predicted(own, "batch_size=1024") > 0
    assert unbuilt["is_oom"]
    assert not any(remedy["predicted"] for remedy in unbuilt["remedies"])


def test_the_real_log_with_the_saved_model(
    models: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    folder, answers, stderr = models
    path = tmp_path / "real.log"
    path.write_text(stderr)
    done = explain(path, "--model", str(folder / "images.keras"), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["layer"] == answers["fit"]["layer"]
    assert found["limit_bytes"] == 300 * 2**20, stderr
    assert "fits in 315 MB" in str(found["remedies"])


def test_a_saved_model(models: tuple[Path, dict[str, Any], str], log: Path) -> None:
    folder, _, _ = models
    done = explain(log, "--model", str(folder / "images.keras"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(done.stdout.split())
    assert (
        "64 × 60 × 60 × 64 × 4 B = 59.0 MB: batch 64, height 60, width 60, filters 64, the output "
        "of second (Conv2D)." in words
    )
    assert "A training step of images.keras on a batch of 64 is predicted to need" in words
    assert len(re.findall(r"saves about [0-9.]+ [kMG]B", words)) >= 5


def test_tokens_heads_and_a_batch_that_the_log_does_not_tell(
    models: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    path = tmp_path / "words.log"
    path.write_text(OOM.format(shape="32,4,128,128", node="words_model/attention/softmax/Softmax"))
    args = ("--model", str(models[0] / "words.keras"), "--json")
    found = json.loads(explain(path, *args).stdout)
    assert found["layer"] == "attention"
    assert "batch 32, heads 4, query steps 128, key steps 128" in found["story"]
    assert predicted(found, "64 instead of 128 steps")
    path.write_text("ResourceExhaustedError: failed to allocate memory [Op:MatMul]")
    assert "--batch-size" in json.loads(explain(path, *args).stdout)["story"]
    found = json.loads(explain(path, *args, "--batch-size", "16").stdout)
    assert predicted(found, "batch_size=8")


def test_a_layer_that_is_not_there(
    models: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    path = tmp_path / "other.log"
    path.write_text(OOM.format(shape="64,7,7,9", node="model/mixed_7/convolution"))
    done = explain(path, "--model", str(models[0] / "images.keras"))
    assert done.returncode == 0
    assert "images.keras has no layer mixed_7" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("missing.keras", 2, "There is no such file"),
        (".", 2, "A folder is not a saved model"),
        ("text.keras", 1, "not a Keras model, or it is damaged"),
        ("cut.keras", 1, "not a Keras model, or it is damaged"),
        ("empty.zip", 1, "holds no Keras model"),
        ("list.zip", 1, "something other than a Keras model"),
        ("lambda.keras", 1, "code that is inside a file is not run"),
        ("own.keras", 1, "legroom.explain(error, model=model)"),
    ],
)
def test_what_is_no_model(
    models: tuple[Path, dict[str, Any], str], log: Path, name: str, code: int, words: str
) -> None:
    folder = models[0]
    _broken_files(folder)
    done = explain(log, "--model", str(folder / name))
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    told = re.sub(r"[│\s]+", " ", done.stderr)
    assert words in told
    assert "Traceback" not in told


def _broken_files(folder: Path) -> None:
    import zipfile

    whole = (folder / "images.keras").read_bytes()
    (folder / "cut.keras").write_bytes(whole[: len(whole) // 2])
    (folder / "text.keras").write_text("Epoch 1/5")
    with zipfile.ZipFile(folder / "empty.zip", "w"):
        pass
    with zipfile.ZipFile(folder / "list.zip", "w") as archive:
        archive.writestr("config.json", "[1, 2]")


def test_no_framework_without_a_model(log: Path) -> None:
    """A framework that can't be imported is not missed."""
    (log.parent / "keras.py").write_text("raise SystemExit('keras was imported')")
    (log.parent / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')")
    done = subprocess.run(
        [LEGROOM, "explain", str(log)],
        env={**os.environ, "PYTHONPATH": str(log.parent)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "was imported" not in done.stderr


def test_a_batch_size_without_a_model(log: Path) -> None:
    done = explain(log, "--batch-size", "8")
    assert done.returncode == 2
    assert "goes with --model" in " ".join(done.stderr.split())


def test_run_explains_with_the_live_model(tmp_path: Path) -> None:
    """A loop that legroom can't slice really runs out under a cap: its model is found."""
    script = tmp_path / "loop.py"
    script.write_text(
        """
import keras, tensorflow as tf
from keras import layers
net = keras.Sequential([
    keras.Input((64, 64, 3)), layers.Conv2D(32, 3, name="first"),
    layers.Conv2D(64, 3, name="second"), layers.GlobalAveragePooling2D(), layers.Dense(10),
], name="net")
x = tf.zeros((256, 64, 64, 3))
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(net(x, training=True) ** 2)
"""
    )
    done = run("--memory", "200MB", str(script))
    assert done.returncode == 1
    words = " ".join(done.stderr.split())
    assert "batch 256, height 62, width 62, filters 32, the output of first (Conv2D)" in words
    assert "A training step of the model net on a batch of 256 is predicted to need" in words
    assert "A batch of 128 instead of 256" in words
    assert "saves about" in words
    assert "legroom run train.py" not in words  # it is what was called


def test_run_predicts_what_would_fit(tmp_path: Path) -> None:
    script = tmp_path / "cannot.py"
    script.write_text(
        """
import keras, legroom
from keras import layers
net = keras.Sequential([
    keras.Input((32, 32, 3)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(512, name="wide"),
])
net.compile("adam", "mse")
raise legroom.CannotFitError("It does not fit.", budget_bytes=20_000_000)
"""
    )
    done = run(str(script))
    assert done.returncode == 3
    words = " ".join(done.stderr.split())
    assert "legroom: It does not fit." in words
    assert "on one sample is predicted to need about" in words
    assert "instead of Flatten" in words
    assert "Adam keeps" in words


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LEGROOM, "run", *args], capture_output=True, text=True, timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "remedies"),
    [
        ("pictures", {"batch": "A batch of", "input": "A smaller input"}),
        ("words", {"batch": "A batch of", "input": "A smaller input"}),
        ("wide", {"average": "An average over", "optimizer": "SGD", "input": "A smaller"}),
    ],
)
def test_predicted_savings_are_those_that_are_measured(kind: str, remedies: dict[str, str]) -> None:
    """Against the allocator's own peak: a static trace is off by its slack and its scratch."""

    def child(how: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(CHILD.with_name("explain_peaks.py")), kind, how],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    predictions, whole = child("predict"), child("plain")
    for how, words in remedies.items():
        [promised] = [saved for text, saved in predictions.items() if text.startswith(words)]
        measured = whole - child(how)
        print(f"{kind} {how}: predicted {promised / MB:.0f} MB, measured {measured / MB:.0f} MB")
        assert promised == pytest.approx(measured, rel=0.3)
