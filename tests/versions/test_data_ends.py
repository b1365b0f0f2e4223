"""Where data ends in the middle of an execution, `legroom run` does what this Keras does.

Versions differ there: in what they return, in what callbacks see, and in parts of a step that they
take without data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")

SCRIPT = """
import json

import keras
import numpy as np
import tensorflow as tf


def train(batches, steps_per_execution, optimizer, known):
    keras.utils.set_random_seed(1)
    x = np.random.rand(batches * 4, 8).astype("float32")
    y = x.sum(1, keepdims=True)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution)
    seen = []

    class Sees(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([batch, float(logs["loss"])])

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    if not known:
        data = data.filter(lambda x, y: True)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[Sees()])
    print(json.dumps({
        "case": [batches, steps_per_execution, known],
        "steps": int(model.optimizer.iterations.numpy()),
        "seen": [batch for batch, _ in seen],
        "losses": [*history.history["loss"], *(loss for _, loss in seen)],
        "weights": np.concatenate([w.ravel() for w in model.get_weights()]).tolist(),
    }))


for known in (True, False):
    train(10, 4, keras.optimizers.AdamW(0.01, use_ema=True), known)
    train(8, 4, keras.optimizers.SGD(0.01, weight_decay=0.1), known)
    train(3, 1, keras.optimizers.AdamW(0.01), known)
"""


def test_where_data_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    commands = [sys.executable, "train.py"], [LEGROOM, "run", "train.py"]
    running = [
        subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"})
        for command in commands
    ]  # fmt: skip
    told = [one.communicate(timeout=300) for one in running]
    for one, (_, errors) in zip(running, told, strict=True):
        assert one.returncode == 0, errors[-3000:]
    plain, guarded = ([json.loads(line) for line in output.splitlines()] for output, _ in told)
    assert len(plain) == len(guarded) == 6
    for one, other in zip(plain, guarded, strict=True):
        exact = ("case", "steps", "seen")
        assert {key: one[key] for key in exact} == {key: other[key] for key in exact}
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-4)
        assert other["weights"] == pytest.approx(one["weights"], rel=1e-4, abs=1e-6)
