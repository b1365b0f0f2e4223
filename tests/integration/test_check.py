"""`legroom check script.py` as a user runs it, and what a pipeline was predicted to hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import LEGROOM, Place
from .side_by_side import legroom

PIPELINES = Path(__file__).with_name("pipelines_child.py")
LEAKING = """
    import sys
    import keras, numpy as np, tensorflow as tf

    x, y = np.random.rand(64, 9).astype("float32"), np.random.rand(64, 4).astype("float32")
    print("arguments:", sys.argv[1:])

    def search(kept):
        for units in range(2, 14):{comment}
            model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(4)])
            model.compile("sgd", "mse")
            model.fit(x, y, verbose=0)
            kept.append(tf.random.normal((600, 600)))

    search([])
    sys.exit({code})
"""


def run(place: Place, *args: str) -> subprocess.CompletedProcess[str]:
    # A dozen trainings, watched: on a busy machine more than the others take.
    return subprocess.run(
        [LEGROOM, "check", *args], cwd=place.folder, capture_output=True, text=True, timeout=300,
        env=place.environment(TF_CPP_MIN_LOG_LEVEL="3"),
    )  # fmt: skip


def test_a_leaking_script(place: Place) -> None:
    place.write(LEAKING.format(comment="", code=0))
    done = run(place, "--json", "script.py", "--epochs", "3")
    assert done.returncode == 3, done.stderr[-2000:]
    found = json.loads(done.stdout)
    by_id = {f["id"]: f for f in found["findings"]}
    assert set(by_id) == {"LR101", "LR105"}, "both of its leaks"
    leak, kept = by_id["LR101"], by_id["LR105"]
    assert leak["place"].endswith("script.py:9"), "the loop's line"
    assert "`kept`" in kept["text"]
    assert kept["bytes"] == pytest.approx(1_440_000, rel=0.1)
    assert "legroom.release()" in leak["fix"]
    assert "arguments: ['--epochs', '3']" in done.stderr, "its own output, out of the way"


def test_data_that_a_loop_goes_through(place: Place) -> None:
    """No `fit` in sight: a cache that fills is named, and is no leak."""
    place.write("""\
        import tensorflow as tf

        data = tf.data.Dataset.range(150).map(lambda i: tf.fill((100_000,), float(i)))
        data = data.cache().prefetch(1000)
        for epoch in range(2):
            for number, x in enumerate(data):
                tf.reduce_sum(x)
    """)
    done = run(place, "--json", "script.py")
    assert done.returncode == 3, done.stderr[-2000:]
    found = {one["id"]: one for one in json.loads(done.stdout)["findings"]}
    assert set(found) - {"LR110"} == {"LR203", "LR204"}
    assert found["LR203"]["bytes"] == pytest.approx(60_000_000, rel=0.01)
    assert found["LR203"]["place"].startswith(str(place.folder / "script.py:6"))


def test_ctrl_c_keeps_what_was_found(place: Place) -> None:
    body = LEAKING.format(comment="", code=0)
    place.write(
        body.replace("sys.exit(0)", "print('done', flush=True); import time; time.sleep(90)")
    )
    running = place.start("check", "script.py", TF_CPP_MIN_LOG_LEVEL="3")
    for line in running.stdout:
        if line == "done\n":
            break
    os.killpg(running.pid, signal.SIGINT)
    output, errors = running.communicate(timeout=60)
    assert "LR101" in output, errors[-2000:]
    assert "KeyboardInterrupt" in errors
    assert "ended with exit code 130" in errors
    assert running.returncode == 1


def test_what_is_said_what_is_not_and_exit_codes(place: Place) -> None:
    place.write("print('fine')")
    fine = run(place, "script.py")
    assert (fine.returncode, fine.stdout) == (0, "fine\nlegroom: nothing found\n")
    place.write("import sys\nfor k in range(3):\n    pass\nsys.exit(4)")
    failed = run(place, "script.py")
    assert failed.returncode == 1
    assert "The script ended with exit code 4" in failed.stderr
    place.write("kept = []\nfor k in range(30):\n    kept.append(bytearray(b'x') * 2_000_000)")
    noted = run(place, "script.py")
    assert noted.returncode == 0, "a container of one's own is no alarm"
    assert "LR109 a container of your own grows: 2.00 MB each iteration" in noted.stdout
    assert "`kept`" in noted.stdout
    assert max(map(len, noted.stdout.splitlines())) <= 80
    ignored = run(place, "--ignore", "LR109", "script.py")
    assert ignored.stdout == "legroom: nothing found\n"
    place.write("raise ValueError('mine')")
    broken = run(place, "script.py")
    assert broken.returncode == 1
    assert "ValueError: mine" in broken.stderr
    assert "runpy" not in broken.stderr


def test_mistakes_of_the_command_line(place: Place) -> None:
    missing = run(place, "nowhere.py")
    assert missing.returncode == 2
    assert "There is no file nowhere.py" in missing.stderr
    place.write("pass")
    unknown = run(place, "--ignore", "LR999", "script.py")
    assert unknown.returncode == 2
    assert "LR999" in unknown.stderr


def predicted_and_measured(rule: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, str(PIPELINES), rule], capture_output=True, text=True, timeout=240,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    return seen["predicted"], seen["measured"]


@pytest.mark.parametrize("rule", ["LR202"])
def test_a_pipeline_holds_what_was_predicted(rule: str) -> None:
    predicted, measured = predicted_and_measured(rule)
    assert predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize(
    "rule",
    ["LR201", "LR202 of batches", "LR203", "LR204", "LR205", "LR205 of files", "LR206", "LR207",
     "fit", "queue"],
)  # fmt: skip
def test_every_pipeline_holds_what_was_predicted(rule: str) -> None:
    predicted, measured = predicted_and_measured(rule)
    assert predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize("rule", ["LR208", "LR209", "LR211"])
def test_what_a_cure_saves_is_what_was_predicted(rule: str) -> None:
    predicted, wasteful = predicted_and_measured(rule)
    still, cured = predicted_and_measured(f"{rule} cured")
    assert still == 0, "it is cured"
    assert predicted == pytest.approx(wasteful - cured, rel=0.15)


LOSSES_WITH_GRAPHS = """
import torch

model, losses = torch.nn.Linear(512, 512), []
for number in range(60):
    x = torch.randn(512, 512)
    losses.append(model(x).square().mean())
"""


def test_losses_that_keep_their_graphs_on_pytorch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOSSES_WITH_GRAPHS)
    found = legroom(
        tmp_path / "run", "check", str(tmp_path / "train.py"), KERAS_BACKEND="torch"
    ).wait()
    assert found.code == 3, found.errors
    assert "The list `losses` takes in a graph of 2.10 MB each iteration" in " ".join(
        found.output.split()
    )
    assert "loss.item()" in found.output
