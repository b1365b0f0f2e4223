"""The off switch: `legroom.uninstall()`, `%unload_ext legroom` and `LEGROOM_DISABLE=1`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("uninstall_child.py")

SCRIPT = """
    import sys
    import numpy as np
    import legroom
    legroom.limit("100MiB")
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    legroom.install()
    assert legroom.guard(model) is model

    @legroom.step
    def step(x):
        return x

    assert step.__name__ == "step" and type(step).__name__ == "function"
    x = np.ones((8, 4), "float32")
    history = legroom.fit(model, x, x[:, :1], memory="1GiB", slice_size=2, epochs=2, verbose=0)
    assert history.legroom.ooms == 0 and not history.legroom.events
    from legroom.backends import patches
    assert patches.places() == []
    assert not [key for key in vars(model) if "legroom" in key]
    import os
    assert "TF_CPU_BFC_MEM_LIMIT_IN_MB" not in os.environ
    print(sys.argv[1:], [float(w.sum()) for w in model.get_weights()], history.history)
    sys.exit(7)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the child has seen; one process for all that is looked at here."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(CHILD)], capture_output=True, text=True, timeout=300,
        cwd=tmp_path_factory.mktemp("uninstall"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_everything_was_on(seen):
    """Or the next test shows nothing."""
    for name in (
        "TensorFlowTrainer.fit",
        "TensorFlowTrainer.make_train_function",
        "Function.__call__",
        "BaseOptimizer.apply",
        "Layer.add_loss",
        "BaseResourceVariable.assign",
        "keras.src.backend.tensorflow.trainer.TFEpochIterator",
        "DatasetV2.shuffle",
        "DatasetV2.__init__",
    ):
        assert name in seen["on"]
    assert seen["trained_before_is_guarded"]
    assert seen["slices"] == [1]


def test_nothing_is_left(seen):
    assert seen["left"] == []
    assert seen["changed"] == []
    assert seen["places"] == []
    assert seen["threads"] == []
    assert seen["listeners"] == 0
    assert seen["finders"] == []
    assert not seen["functions"]
    assert seen["attributes"] == []


def test_what_was_guarded_runs_as_keras_would(seen):
    assert seen["plain_again"]
    assert seen["slices_after"] == []


def test_it_can_be_switched_on_again(seen):
    assert seen["on_again"] == 44
    assert seen["same"], "four epochs, guarded and not, are the four epochs of plain Keras"
    assert seen["unloaded"] == []


def test_legroom_fit_is_guarded_in_a_watched_block_and_after_it(seen):
    assert seen["in_watch"] == [True, True]
    assert seen["after_watch"] == []


def test_disabled_a_script_runs_as_without_legroom(place):
    place.write(SCRIPT)
    plain = place.plain("script.py", "--an-option", LEGROOM_DISABLE="1", LEGROOM_MEMORY="90MiB")
    assert plain.returncode == 7, plain.stderr
    run = place.legroom(
        "run", "--memory", "120MiB", "script.py", "--an-option", LEGROOM_DISABLE="1"
    )  # fmt: skip
    assert run.returncode == 7
    assert run.stdout == plain.stdout
    assert run.stderr.count("legroom") == 2, run.stderr
    assert "LEGROOM_DISABLE is set: script.py runs without legroom" in run.stderr
    assert not (place.folder / ".legroom").exists()


def test_disabled_by_zero_is_not_disabled(place):
    place.write("import legroom.core.process.disabled as d; print(d.is_disabled())")
    assert place.plain("script.py", LEGROOM_DISABLE="0").stdout == "False\n"
    assert place.plain("script.py", LEGROOM_DISABLE="1").stdout == "True\n"
