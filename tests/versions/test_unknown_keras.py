"""A Keras that nobody has seen: what legroom can't build on is left out, and the training runs.

Each case is a copy of the installed Keras in which one of its own names is another. Plain Python
and ``legroom run`` train with that same copy; the weights must be equal and no traceback seen.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")

SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.rand(96, 8).astype("float32")
y = x.sum(1, keepdims=True)
inputs = keras.Input((8,))
hidden = keras.layers.Dense(16, activation="relu")(inputs)
hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.AdamW(0.01, clipnorm=1.0), "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=20, epochs=2, verbose=0, validation_split=0.2)
print(history.history)
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda a, b: b[0] > 3).batch(16),
          epochs=2, verbose=0)
print(model.evaluate(x, y, verbose=0, return_dict=True), model.predict(x, verbose=0).sum())
print(model.train_on_batch(x[:8], y[:8]))
optimizer = keras.optimizers.Adam(0.01)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss


print([float(step(x[i:i + 16], y[i:i + 16])) for i in range(0, 96, 16)])
print([value.tolist() for value in model.get_weights()])
"""

NOTHING = "every training runs as Keras would, without legroom: this Keras"
NOT_KEPT = "can't resume and start from the beginning: this Keras"

# What is called otherwise, and what is to be said; nothing where legroom does not build on it.
RENAMED = {
    "TFEpochIterator": NOT_KEPT,
    "BaseOptimizer": NOTHING,
    "CompileLoss": None,  # for slices, which nobody asks for here
}
MORE = {
    "_iterations": NOTHING,
    "_enumerate_iterator": None,
    "_distributed_dataset": NOT_KEPT,
    "make_train_function": NOTHING,
    "_backend_update_step": NOTHING,
    "_flatten_layers": NOTHING,
    "_use_weight_decay": NOTHING,
    "_value": NOTHING,
    "iterations": NOTHING,
    "_steps_seen": NOT_KEPT,
    "_initial_epoch": NOT_KEPT,
    "reduce_weighted_values": None,
    "_compile_loss": None,
    "_tracker": None,
    "_make_function": None,
    "_run_through_graph": None,  # for recompute, which nobody asks for here
    "_functional": None,
}

WATCHED = """
import keras
import numpy as np

import legroom

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((32, 8), "float32")
with legroom.watch():
    for _ in range(3):
        model.fit(x, x[:, :1], verbose=0)
"""


def made_up(folder: Path, name: str) -> bool:
    """Copy the installed Keras with a name of its own changed; whether it had that name."""
    import keras

    shutil.copytree(Path(keras.__file__).parent, folder / "keras", copy_function=os.link)
    found = False
    for path in (folder / "keras").rglob("*.py"):
        text = path.read_text()
        changed = re.sub(rf"\b{name}\b", f"{name}_of_another_time", text)
        if changed != text:
            found = True
            path.unlink()  # a link to the installed file
            path.write_text(changed)
    return found


def start(command: list[str], folder: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sentence"),
    [*RENAMED.items(), *(pytest.param(*case, marks=pytest.mark.long) for case in MORE.items())],
)
def test_a_name_of_keras_is_another(tmp_path: Path, name: str, sentence: str | None) -> None:
    if not made_up(tmp_path / "made_up", name):
        pytest.skip(f"the installed Keras has no {name}")
    (tmp_path / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path / "made_up"), os.environ.get("PYTHONPATH", "")])
    plain = start([sys.executable, "train.py"], tmp_path, PYTHONPATH=path)
    guarded = start([LEGROOM, "run", "train.py"], tmp_path, PYTHONPATH=path)
    expected, complaints = plain.communicate(timeout=240)
    assert plain.returncode == 0, complaints
    output, told = guarded.communicate(timeout=240)
    assert guarded.returncode == 0, told
    assert "Traceback" not in told
    assert output == expected
    if sentence is None:
        assert "this Keras" not in told
    else:
        assert told.count(sentence) == 1, told


def test_a_watch_says_what_it_leaves_out(tmp_path: Path) -> None:
    assert made_up(tmp_path / "made_up", "test_on_batch")
    (tmp_path / "watched.py").write_text(WATCHED)
    path = os.pathsep.join([str(tmp_path / "made_up"), os.environ.get("PYTHONPATH", "")])
    run = start([sys.executable, "watched.py"], tmp_path, PYTHONPATH=path)
    _, told = run.communicate(timeout=240)
    assert run.returncode == 0, told
    assert told.count("what TensorFlow and Keras keep is not watched: this Keras") == 1, told
