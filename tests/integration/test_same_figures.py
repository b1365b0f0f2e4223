"""One question, one answer: whoever is asked about a model says the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from legroom.core.units import format_bytes

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")
# So much that nothing is probed: a probe is a run, and no two runs with threads are alike.
MEMORY = "7GiB"
LOG = (
    "OOM when allocating tensor with shape[64,30,30,32] and type float on /job:localhost/replica:0/"
    "task:0/device:CPU:0 by allocator cpu\n\t [[{{node pictures/first/convolution}}]]\n"
    "I tensorflow/core/common_runtime/bfc_allocator.cc:1059] Stats: \n"
    f"Limit:                      {7 * 2**30}\n"
    "InUse:                       200000000\n"
)
SCRIPT = """
import sys, keras, numpy as np
model = keras.saving.load_model("pictures.keras")
model.fit(np.zeros((128, 32, 32, 3), "float32"), np.zeros(128, "int32"), batch_size=64, verbose=0)
"""
MAKE = """
import keras
from keras import layers
model = keras.Sequential([
    keras.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu", name="first"),
    layers.Flatten(), layers.Dense(256, activation="relu"), layers.Dense(10, activation="softmax"),
], name="pictures")
model.compile("adam", "sparse_categorical_crossentropy")
model.save("pictures.keras")
"""
CHECK = """
import json, keras, legroom
model = keras.saving.load_model("pictures.keras")
made = legroom.plan(model, 64, memory=7 * 2**30)
found = legroom.check(model, batch_size=64, memory=7 * 2**30)
print(json.dumps([made.estimate.peak_bytes, [one.to_dict() for one in found]]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    (folder / "train.log").write_text(LOG)
    (folder / "train.py").write_text(SCRIPT)
    said(folder, sys.executable, "-c", MAKE)
    return folder


def said(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_plan_explain_check_and_report_give_the_same_bytes(folder: Path) -> None:
    asked = ("--model", "pictures.keras", "--batch-size", "64")
    plan = json.loads(said(folder, LEGROOM, "plan", *asked, "--memory", MEMORY, "--json"))
    peak = plan["estimate"]["peak_bytes"]

    in_python, findings = json.loads(said(folder, sys.executable, "-c", CHECK))
    assert in_python == peak
    by_change = {one["data"].get("change"): one for one in findings}
    assert by_change[None]["bytes"] == peak

    explained: dict[str, Any] = json.loads(
        said(folder, LEGROOM, "explain", "train.log", *asked, "--json")
    )
    assert explained["limit_bytes"] == 7 * 2**30
    assert f"predicted to need about {format_bytes(peak)}:" in explained["story"]
    savings = {one["text"]: one["bytes_saved"] for one in explained["remedies"]}
    for name in ("average_pooling", "smaller_input", "sgd"):
        finding = by_change[name]
        (saved,) = [saved for text, saved in savings.items() if finding["text"].startswith(text)]
        assert saved == finding["bytes"], name

    said(folder, LEGROOM, "run", "--memory", MEMORY, "--report", "out", "train.py")
    record = next((folder / "out").glob("*.json")).read_text()
    assert f'"peak_bytes": {peak},' in record
