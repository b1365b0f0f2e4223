"""Memory where others look for it: Prometheus, TensorBoard, History and CSV files."""

from __future__ import annotations

import csv
import json
import re
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .conftest import Place

SCRIPT = """
    import time
    from legroom.core.events import MemorySampled, emit

    emit(MemorySampled(device_bytes=12345, host_bytes=678, peak_bytes=23456, steps=3, samples=96))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_prometheus_is_answered_while_it_runs(place: Place) -> None:
    place.write(SCRIPT)
    parent = place.start("run", "--metrics", "0", "script.py")
    try:
        assert parent.stdout is not None
        assert parent.stderr is not None
        said = parent.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", said)
        assert found is not None, said
        assert parent.stdout.readline() == "ready\n"
        with urllib.request.urlopen(found[0]) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "legroom_device_bytes 12345\n" in text
        assert "legroom_samples_total 96\n" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(found[0].replace("metrics", "etc/passwd"))
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(20) == -signal.SIGTERM
    finally:
        parent.kill()
        parent.communicate()


@pytest.mark.parametrize("address", ["nonsense", "99999", "1.2.3.4:80"])
def test_an_address_that_can_not_be_used_is_said(place: Place, address: str) -> None:
    place.write(SCRIPT)
    done = place.legroom("run", "--metrics", address, "script.py")
    assert done.returncode == 1
    assert f"--metrics can't listen on '{address}'" in done.stderr
    assert done.stdout == ""


TRAINS = """
    import json, keras, numpy as np, legroom
    from keras import layers

    x, y = np.random.rand(64, 48, 48, 3).astype("float32"), np.zeros(64)
    model = keras.Sequential([keras.Input((48, 48, 3)), layers.Conv2D(64, 3, activation="relu"),
                              layers.GlobalAveragePooling2D(), layers.Dense(1)])
    model.compile("sgd", "mse")
    history = legroom.fit(model, x, y, batch_size=32, epochs=2, verbose=0, slice_size=8, callbacks=[
        legroom.MemoryTensorBoard("logs"), keras.callbacks.CSVLogger("log.csv")])
    print(json.dumps(history.history))
    own = keras.callbacks.TensorBoard("own")
    plain = model.fit(x, y, batch_size=32, verbose=0, callbacks=[own])
    assert set(plain.history) == {"loss"}, plain.history
"""


def test_tensorboard_history_and_csv_have_it(place: Place) -> None:
    place.write(TRAINS)
    done = place.legroom("run", "--memory", "100MiB", "script.py")
    assert done.returncode == 0, done.stderr
    history: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[0])
    assert set(history) == {"loss", "memory_peak_mb", "memory_slices", "memory_ooms"}
    assert history["memory_slices"] == [4, 4]
    assert all(5 < peak <= 105 for peak in history["memory_peak_mb"])
    with open(place.folder / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["memory_peak_mb"]) for row in rows] == history["memory_peak_mb"]
    found = EventAccumulator(str(place.folder / "logs" / "legroom"))
    found.Reload()
    peaks = [one.value for one in found.Scalars("memory/device_peak_MB")]
    assert max(peaks) == pytest.approx(history["memory_peak_mb"][-1], rel=1e-6)
    assert len(found.Tags()["images"]) == 1
    assert found.Scalars("legroom/slices")[-1].value == history["memory_slices"][-1]
    beside = EventAccumulator(str(place.folder / "own" / "legroom"))
    beside.Reload()
    assert beside.Scalars("memory/device_peak_MB")[-1].value > 5
