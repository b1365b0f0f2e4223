"""What snapshots cost: a training with them over one without, and how soon one goes on.

A model whose weights and optimizer are 100 million numbers, 400 MB, as the issue that asked for
this says. Blocks of steps with one snapshot in them take turns with blocks without; the difference
is what a snapshot costs, wherever it falls (the copy on the training thread, and the steps that
are slower while it is written), and it is spread over the default interval.

`snapshots.py measure`, or `snapshots.py killed FOLDER` and `snapshots.py resume FOLDER`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers

import legroom
from legroom.core.events import Event, listening
from legroom.snapshots.folder import RunFolder
from legroom.snapshots.run import EVERY, SnapshotRun, running

WIDTH, BATCH, BLOCK = 4096, 64, 20


def build() -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """33 million weights, with Adam three times as many numbers."""
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(WIDTH, "relu"), layers.Dense(WIDTH, "relu"),
         layers.Dense(10, "softmax")]
    )  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    samples = BATCH * BLOCK
    return model, rng.random((samples, WIDTH), np.float32), rng.integers(0, 10, samples)


class Blocks(keras.callbacks.Callback):
    """Times epochs, and asks for a snapshot in the second batch of every other one."""

    def __init__(self, run: SnapshotRun) -> None:
        super().__init__()
        self._run = run
        self.times: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock; no snapshot for the end of the epoch before: a block has one or none."""
        self._run._cost = 1e9
        self._began = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The next batch's boundary takes a snapshot when one is due."""
        self._run.every = 0.0 if len(self.times) % 2 and batch == 1 else 1e9

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop the clock when all is written: it is part of the cost."""
        self._run.wait()
        self.times.append(time.perf_counter() - self._began)


def measure(blocks: int = 13) -> dict[str, Any]:
    """Take turns, and compare."""
    model, x, y = build()
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        place = RunFolder(folder)
        place.open()
        run = SnapshotRun(place, every=1e9)
        timer = Blocks(run)
        legroom.guard(model)
        with running(run), listening(events.append):
            model.fit(x, y, batch_size=BATCH, epochs=blocks, verbose=0, callbacks=[timer])
        place.clear()
        place.close()
    times = timer.times[1:]  # the first one traces
    without, with_one = times[1::2], times[0::2]
    taken = [event.data for event in events if event.name == "snapshot"]
    cost = statistics.median(with_one) - statistics.median(without)
    return {
        "state_bytes": 4 * 3 * model.count_params(),
        "snapshots": len(taken),
        "step_ms": statistics.median(without) / BLOCK * 1e3,
        "cost_seconds": cost,
        "ratio": 1 + max(0.0, cost) / EVERY,
        "copy_seconds": statistics.median([d["copy_seconds"] for d in taken[:-1]] or [0.0]),
        "write_seconds": statistics.median([d["seconds"] for d in taken[:-1]] or [0.0]),
    }


class Watch(keras.callbacks.Callback):
    """Ends the process when a snapshot is on the disk; or times the first batch, and stops."""

    # Not on the object: what a callback keeps there is put back when it is resumed.
    dies_when_in: ClassVar[str | None] = None
    done: ClassVar[list[float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Look for one."""
        if self.dies_when_in is not None and RunFolder(self.dies_when_in).has_snapshots():
            os._exit(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The first call counts."""
        if self.dies_when_in is None:
            self.done.append(time.perf_counter())
            self.model.stop_training = True


def killed(folder: str) -> dict[str, Any]:
    """A training that dies once it is kept."""
    model, x, y = build()
    Watch.dies_when_in = folder
    legroom.fit(model, x, y, batch_size=BATCH, epochs=50, verbose=0, snapshots=folder,
                callbacks=[Watch()])  # fmt: skip
    raise SystemExit("no snapshot was taken")


def resume(folder: str) -> dict[str, Any]:
    """How long a resume takes, from `fit` to the first batch, over a start without one."""
    times = {}
    for name, place in (("fresh", None), ("resumed", folder)):
        model, x, y = build()
        Watch.done.clear()
        began = time.perf_counter()
        legroom.fit(model, x, y, batch_size=BATCH, epochs=50, verbose=0, snapshots=place,
                    callbacks=[Watch()])  # fmt: skip
        times[name] = Watch.done[0] - began
    return {**times, "added_seconds": times["resumed"] - times["fresh"]}


if __name__ == "__main__":
    found = globals()[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(found))
