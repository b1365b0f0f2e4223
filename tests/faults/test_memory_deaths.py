"""Memory that runs out without an exception: the script is started again, and finishes.

A kernel that kills, oneDNN that crashes, XLA that aborts: all of them the real thing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from legroom.report.run import RunReport

from .groups import memory_group
from .killing import LEGROOM

pytestmark = pytest.mark.on_tensorflow("nothing is resumed on PyTorch yet")

MODEL = """
import os, sys
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
BATCH = 256
x = rng.random((BATCH * 2, SIZE, SIZE, 3), np.float32)
y = rng.integers(0, 10, BATCH * 2)
model = keras.Sequential([
    keras.Input((SIZE, SIZE, 3)),
    layers.Conv2D(32, 3, activation="tanh"),
    layers.Conv2D(32, 3, activation="tanh"),
    layers.AveragePooling2D(4),
    layers.Flatten(),
    layers.Dense(10, "softmax"),
])
model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", jit_compile=JIT)
"""
ENDS = """
np.savez(sys.argv[1], *model.get_weights(), *history.history.values())
"""
# The first process holds more and more after its third batch, until the kernel has enough.
GROWS = """
held = []

class Grows(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.params["epochs"] and not os.path.exists("grown") and self.model.optimizer.iterations > 2:
            open("grown", "w").close()
            while True:
                held.append(np.ones(2**24))

history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, callbacks=[Grows()])
"""  # noqa: E501
TRAINS = """
history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
"""
# The first process takes most of the device's memory away from the training.
TAKES = """
import tensorflow as tf

class Takes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if not os.path.exists("taken"):
            open("taken", "w").close()
            self.taken = [tf.zeros([2**18]) for _ in range(160)]

history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Takes()])
"""
# The same in the middle of a step, where no plan could have known it.
TAKES_INSIDE = """
import tensorflow as tf

taken = []

def take(values):
    if model.optimizer.iterations > 0 and not os.path.exists("taken"):
        open("taken", "w").close()
        while True:
            try:
                taken.append(tf.zeros([2**20]))
            except tf.errors.ResourceExhaustedError:
                break
    return values

class Takes(layers.Layer):
    def call(self, values):
        seen = tf.grad_pass_through(lambda v: tf.numpy_function(take, [v], v.dtype))(values)
        seen.set_shape(values.shape)
        return seen

model = keras.Sequential([*model.layers[:1], Takes(), *model.layers[1:]])
model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", jit_compile=False)
history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
"""


def write(folder: Path, end: str, *, size: int = 24, jit: bool = False) -> None:
    text = (MODEL + end + ENDS).replace("SIZE", str(size)).replace("JIT", str(jit))
    (folder / "train.py").write_text(textwrap.dedent(text))


def run(folder: Path, *options: str, group: Path | None = None) -> tuple[RunReport, dict, str]:
    command = [LEGROOM, "run", *options, "--json", "report.json", "train.py", "out.npz"]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=900,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (folder / ".legroom").exists()
    report = RunReport.from_json((folder / "report.json").read_text())
    return report, dict(np.load(folder / "out.npz")), done.stderr


def plain(folder: Path) -> dict:
    subprocess.run(
        [sys.executable, "train.py", "plain.npz"], cwd=folder, check=True, capture_output=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=300,
    )  # fmt: skip
    return dict(np.load(folder / "plain.npz"))


def close(one: dict, other: dict) -> None:
    for name in one:
        assert np.allclose(one[name], other[name], rtol=1e-5, atol=1e-5), name


def test_the_kernel_kills_and_the_run_goes_on(tmp_path: Path) -> None:
    write(tmp_path, GROWS)
    with memory_group(1400 * 2**20) as group:
        report, out, said = run(tmp_path, "--snapshot-every", "0", group=group)
    assert "the kernel killed it for memory" in said
    assert "training 1 resumes at" in said
    assert (report.restarts, report.samples_seen, report.samples_lost) == (1, 1024, 0)
    close(plain(tmp_path), out)  # "grown" is there by now


def test_a_script_that_loads_too_much_is_told_so(tmp_path: Path) -> None:
    """Before any training: smaller slices can't help, and it is not tried again."""
    (tmp_path / "train.py").write_text("x = []\nwhile True: x.append(bytearray(2**24))\n")
    with memory_group(200 * 2**20) as group:
        done = subprocess.run(
            ["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec {LEGROOM} run train.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode in (-9, 137)
    assert "script itself" in done.stderr


@pytest.mark.long
def test_onednn_crashes_and_the_run_goes_on(tmp_path: Path) -> None:
    write(tmp_path, TAKES_INSIDE, size=24)
    report, out, said = run(
        tmp_path, "--memory", "300MiB", "--keep-onednn", "--snapshot-every", "0"
    )
    assert "it ended by SIGSEGV when all of the device's memory was in use" in said, said[-2000:]
    assert "or more are not tried" in said
    assert (report.restarts, report.samples_seen, report.samples_lost) == (1, 1024, 0)
    close(plain(tmp_path), out)


@pytest.mark.long
def test_onednn_below_the_peak_finishes(tmp_path: Path) -> None:
    """With oneDNN running out ends the process by SIGSEGV; planned, it does not come to that."""
    write(tmp_path, TRAINS, size=64)
    report, out, _ = run(tmp_path, "--memory", "300MiB", "--keep-onednn")
    assert report.samples_seen == 1024
    close(plain(tmp_path), out)


def test_a_compiled_step_runs_out_and_the_run_goes_on(tmp_path: Path) -> None:
    write(tmp_path, TAKES, size=24, jit=True)
    report, out, said = run(tmp_path, "--memory", "210MiB", "--snapshot-every", "0")
    assert report.restarts >= 1, said[-2000:]
    assert "a compiled step ran out" in said
    assert "or more are not tried" in said
    assert report.samples_seen == 1024
    close(plain(tmp_path), out)
