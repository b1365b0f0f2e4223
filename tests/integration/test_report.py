"""A page about a real run that was killed: recorded while it ran, and made afterwards."""

from __future__ import annotations

import json
from typing import Any

SCRIPT = """
    import os, signal, time
    import keras, legroom, numpy as np, tensorflow as tf
    from keras import layers

    x = np.random.rand(96, 48, 48, 3).astype("float32")
    y = np.random.randint(0, 10, 96)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(32).prefetch(1)
    model = keras.Sequential([
        keras.Input((48, 48, 3)),
        layers.Conv2D(64, 3, activation="relu", name="wide"),
        layers.GlobalAveragePooling2D(), layers.Dense(10, name="head"),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)

    class Killed(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                time.sleep(1.5)  # a sample of memory is told every half second
                os.kill(os.getpid(), signal.SIGKILL)

    legroom.fit(model, data, epochs=3, callbacks=[Killed()], verbose=0, slice_size=8)
"""


def test_a_killed_run_has_a_page(place: Any) -> None:
    place.write(SCRIPT)
    done = place.legroom("run", "--memory", "90MiB", "--report", "out", "script.py")
    assert done.returncode == -9
    assert "legroom: the report is in out/report.html" in done.stderr
    report = json.loads((place.folder / "out" / "report.json").read_text())
    names = [event["name"] for event in report["events"]]
    for name in ("run_started", "machine", "memory", "input", "predicted", "measured", "plan",
                 "run_ended"):  # fmt: skip
        assert name in names, name
    told = {event["name"]: event["data"] for event in report["events"]}
    assert told["run_ended"] == {"code": -9}
    assert told["memory"]["host_bytes"] > 10**8
    assert 0 < told["memory"]["device_bytes"] <= told["memory"]["peak_bytes"] <= 90 * 2**20
    assert told["memory"]["steps"] >= 1
    assert [stage["kind"] for stage in told["input"]["stages"]] == [
        "arrays", "shuffle", "batch", "prefetch",
    ]  # fmt: skip
    made = told["predicted"]["plan"]["estimate"]
    assert {"wide", "head"} <= {name for name, _ in made["layers"]}
    assert all(
        sum(parts) == size for parts, (_, size) in zip(made["parts"], made["timeline"], strict=True)
    )
    assert max(size for _, size in made["timeline"]) <= made["peak_bytes"]
    assert told["machine"]["versions"]["keras"]

    # The same from the folder that the run left for going on, and of both on one page.
    for command in (("script.py",), ("out", ".legroom/script.py", "-o", "both.html")):
        done = place.legroom("report", *command)
        assert done.returncode == 0, done.stderr
        page = (place.folder / done.stdout.strip()).read_text()
        assert "was killed by SIGKILL" in page
    assert done.stdout == "both.html\n"
    said = place.legroom("report", "out", "--json")
    assert json.loads(said.stdout)["runs"] == [report]


def test_what_can_not_be_read_is_said(place: Any) -> None:
    done = place.legroom("report", "nowhere")
    assert done.returncode == 1
    assert "There is no file or folder nowhere" in done.stderr
    place.write("", "a_file")
    place.write("print(1)")
    done = place.legroom("run", "--report", "a_file", "script.py")
    assert done.returncode == 2
    assert "is a file" in done.stderr
    assert done.stdout == ""
