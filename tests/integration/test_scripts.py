"""Scripts that train, run by ``legroom run``: what is theirs stays theirs."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .side_by_side import CAP_FOR_PLAIN_PYTHON, Running, legroom, python
from .test_run_signals import eventually, gone

TINY = """
import sys
import keras
import numpy as np

x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""

# A user's mistake in each of the places that a guarded step runs through.
MISTAKES = {
    "callback": """
        class Checks(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                raise ValueError("the callback's own mistake")

        model.fit(x, y, verbose=0, callbacks=[Checks()])
        """,
    "layer": """
        class Odd(keras.layers.Layer):
            def call(self, inputs):
                raise LookupError("the layer's own mistake")

        model.add(Odd())
        model.compile("sgd", "mse")
        model.fit(x, y, verbose=0)
        """,
    "data": """
        def batches():
            yield x, y
            raise RuntimeError("the data's own mistake")

        model.fit(batches(), verbose=0)
        """,
    "shapes": """
        model.fit(x, y[:7], verbose=0)
        """,
}


def write(folder: Path, code: str) -> str:
    path = folder / "script.py"
    path.write_text(TINY + textwrap.dedent(code))
    return str(path)


def own_lines(errors: str) -> list[str]:
    """The lines of a traceback that lie in the script, and the error itself."""
    lines = errors.splitlines()
    frames = [
        (line.strip(), lines[number + 1].strip())
        for number, line in enumerate(lines)
        if "script.py" in line
    ]
    told = [line for line in lines if "mistake" in line or line.startswith(("ValueError", "Make"))]
    return [part for frame in frames for part in frame] + told


def both_ways(folder: Path, script: str, stdin: str = "") -> tuple[Running, Running]:
    return (
        python(folder / "plain", script, stdin=stdin),
        legroom(folder / "guarded", "run", script, stdin=stdin),
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_training_is_the_users_own(tmp_path: Path, mistake: str) -> None:
    plain, guarded = (
        running.wait() for running in both_ways(tmp_path, write(tmp_path, MISTAKES[mistake]))
    )
    assert guarded.code == plain.code == 1
    assert own_lines(guarded.errors) == own_lines(plain.errors)
    assert len(own_lines(plain.errors)) >= 3
    assert "supervise/child.py" not in guarded.errors


def test_an_exit_code_and_the_input_are_the_scripts(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        steps = int(input())
        model.fit(x, y, steps_per_epoch=steps, batch_size=8, verbose=0)
        print("steps", int(model.optimizer.iterations), "then", sys.stdin.readline().strip())
        sys.exit(7)
        """,
    )
    for running in both_ways(tmp_path, script, stdin="3\nthe rest\n"):
        done = running.wait()
        assert (done.code, done.output) == (7, "steps 3 then the rest\n"), done.errors


def test_ctrl_c_in_a_training(tmp_path: Path) -> None:
    """It dies by SIGINT as plain Python does, with the script's traceback, and nobody is left.

    The steps are long ones: TensorFlow itself may crash when it is interrupted in the `next` of a
    dataset's iterator (4 of 20 plain loops over a dataset did).
    """
    script = write(
        tmp_path,
        """
        import os

        x, y = np.ones((8192, 500), "float32"), np.ones((8192, 1), "float32")
        wide = [keras.layers.Dense(1000) for _ in range(4)]
        model = keras.Sequential([*wide, keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        class Tells(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                print("training", os.getpid(), flush=True)

        model.fit(x, y, batch_size=2048, epochs=1000, verbose=0, callbacks=[Tells()])
        """,
    )
    written = tmp_path / "report.json"
    guarded = legroom(tmp_path / "guarded", "run", "--json", str(written), script)
    guarded.wait_for("training ")
    child = int(guarded.output().split()[1])
    assert child != guarded.process.pid
    os.killpg(guarded.process.pid, signal.SIGINT)
    done = guarded.wait(timeout=30)
    assert done.code == -signal.SIGINT
    assert "model.fit(x, y, batch_size=2048" in done.errors
    assert "KeyboardInterrupt" in done.errors
    assert eventually(lambda: gone(child))
    assert RunReport.from_json(written.read_text()).samples_lost == 0


def test_a_function_that_does_not_train_is_left_alone(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import tensorflow as tf

        calls = []

        @tf.function
        def double(values):
            calls.append("traced")
            return 2 * values

        print(double(tf.constant([1, 2])).numpy(), double(tf.constant([3, 4])).numpy(), calls)
        """,
    )
    plain, guarded = (running.wait() for running in both_ways(tmp_path, script))
    assert guarded.output == plain.output == "[2 4] [6 8] ['traced']\n"
    assert guarded.code == plain.code == 0


def test_an_eager_loop_that_runs_out_ends_with_the_line_to_add(tmp_path: Path) -> None:
    """What can't be sliced unedited dies as it would, and says what would help."""
    script = write(
        tmp_path,
        """
        import tensorflow as tf

        def train_step(size):
            values = tf.Variable(tf.ones((size,)))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(values))
            model.optimizer.apply_gradients([(tape.gradient(loss, values), values)])

        train_step(2**28)
        """,
    )
    plain = python(tmp_path / "plain", script, **CAP_FOR_PLAIN_PYTHON)
    guarded = legroom(tmp_path / "guarded", "run", "--memory", "1GiB", script)
    assert "ResourceExhaustedError" in plain.wait().errors
    done = guarded.wait()
    assert done.code in (1, 3)
    assert "train_step(2**28)" in done.errors
    assert "@legroom.step" in done.errors


def test_processes_that_load_data_end_with_the_training(tmp_path: Path) -> None:
    """Keras ends them by SIGTERM and waits: they must not take it for a wish to stop training."""
    script = write(
        tmp_path,
        """
        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return x, y

        data = Batches(workers=2, use_multiprocessing=True, max_queue_size=4)
        model.fit(data, epochs=2, verbose=0, shuffle=False)
        print("trained", int(model.optimizer.iterations))
        """,
    )
    done = legroom(tmp_path / "guarded", "run", script).wait(90)
    assert done.code == 0, done.errors[-2000:]
    assert done.output == "trained 8\n"
