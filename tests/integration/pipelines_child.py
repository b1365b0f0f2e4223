"""Builds real pipelines, and prints what was predicted and what they took; run by test_check.py."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import legroom
from legroom.machine.process import ResidentMemory, return_freed_pages

WIDTH = 10_000  # 40 kB of float32


def rows(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(count).map(lambda k: tf.ones(WIDTH) * tf.cast(k, tf.float32))


def shuffled() -> tf.data.Dataset:
    return rows(4000).shuffle(2000)


def shuffled_batches() -> tf.data.Dataset:
    return rows(4000).batch(32).shuffle(60)


def cached() -> tf.data.Dataset:
    return rows(2500).cache()


def prefetched() -> tf.data.Dataset:
    return rows(4000).batch(32).prefetch(80)


def mapped() -> tf.data.Dataset:
    return rows(4000).batch(32).map(lambda x: x + 1.0, num_parallel_calls=64)


def interleaved() -> tf.data.Dataset:
    def file(number: Any) -> Any:
        # Not ones: a constant would be there once more for each file.
        return tf.data.Dataset.range(100).map(lambda k: tf.random.uniform((10 * WIDTH,)))

    return tf.data.Dataset.range(100).interleave(
        file, cycle_length=16, block_length=2, num_parallel_calls=4
    )


def arrays() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(ARRAY).batch(32)


def cached_doubles() -> tf.data.Dataset:
    return rows(1500).map(lambda x: tf.cast(x, tf.float64)).cache()


def cached_floats() -> tf.data.Dataset:
    return rows(1500).cache()


def images() -> tf.data.Dataset:
    return tf.data.Dataset.range(4000).map(lambda k: tf.fill([WIDTH], tf.cast(k % 255, tf.uint8)))


def shuffled_as_floats() -> tf.data.Dataset:
    return images().map(lambda x: tf.cast(x, tf.float32) / 255).shuffle(2000)


def shuffled_as_bytes() -> tf.data.Dataset:
    return images().shuffle(2000).map(lambda x: tf.cast(x, tf.float32) / 255)


def decoded_then_shuffled() -> tf.data.Dataset:
    return rows(4000).shuffle(2000)


def shuffled_then_decoded() -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(4000).shuffle(2000)
    return numbers.map(lambda k: tf.ones(WIDTH) * tf.cast(k, tf.float32))


def augmented_then_cached() -> tf.data.Dataset:
    return rows(2500).map(lambda x: x + tf.random.uniform((WIDTH,))).cache()


def batched_twice() -> tf.data.Dataset:
    return rows(4000).batch(32).batch(64)


class Batches(keras.utils.PyDataset):
    """A queue of them waits, as many as it may."""

    def __init__(self) -> None:
        super().__init__(workers=2, max_queue_size=60)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> Any:
        return np.full((32, WIDTH), number, np.float32), np.zeros(32, np.float32)


ARRAY = np.random.default_rng(0).random((2500, WIDTH), np.float32)
RULES: dict[str, tuple[str, Callable[[], Any]]] = {
    "LR202": ("buffer", shuffled),
    "LR202 of batches": ("buffer", shuffled_batches),
    "LR203": ("whole", cached),
    "LR204": ("buffer", prefetched),
    "LR205": ("buffer", mapped),
    "LR205 of files": ("buffer", interleaved),
    "LR201": ("whole", arrays),
    "LR206": ("first", batched_twice),
    "LR207": ("whole", augmented_then_cached),
    "LR208": ("whole", cached_doubles),
    "LR208 cured": ("whole", cached_floats),
    "LR209": ("buffer", shuffled_as_floats),
    "LR209 cured": ("buffer", shuffled_as_bytes),
    "LR211": ("buffer", decoded_then_shuffled),
    "LR211 cured": ("buffer", shuffled_then_decoded),
}


class Peak:
    """The most that this process holds while the context lasts."""

    def __enter__(self) -> Peak:
        self._read = ResidentMemory()
        self.base = self.most = self._read()
        self._on = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._on:
            self.most = max(self.most, self._read())
            time.sleep(0.002)

    def __exit__(self, *error: object) -> None:
        self._on = False
        self._thread.join()

    @property
    def grown(self) -> int:
        return self.most - self.base


def taken(dataset: Any, how: str) -> Iterator[Any]:
    iterator = iter(dataset)
    if how == "whole":
        yield from iterator
        return
    for _ in range(1 if how == "first" else 3):
        yield next(iterator)
    time.sleep(3)


def measured(name: str) -> dict[str, Any]:
    how, make = RULES[name]
    for _ in rows(4).batch(2).prefetch(1):  # TensorFlow's own threads and kernels
        pass
    tf.constant(np.ones((4, WIDTH), np.float32))
    gc.collect()
    return_freed_pages()
    with Peak() as peak:
        dataset = make()
        for _ in taken(dataset, how):
            pass
    found = {finding.id: finding.bytes for finding in legroom.check(dataset)}
    # What stays, where a moment needs more: see the finding's own words.
    grown = ResidentMemory()() - peak.base if name == "LR201" else peak.grown
    return {"name": name, "predicted": found.get(name[:5], 0), "measured": grown}


def fitted() -> dict[str, Any]:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    y = np.ones(len(ARRAY), np.float32)
    model.fit(ARRAY[:64], y[:64], verbose=0)
    gc.collect()
    with Peak() as peak:
        model.fit(ARRAY, y, verbose=0)
    (finding,) = legroom.check((ARRAY, y))
    return {"name": "fit", "predicted": finding.bytes, "measured": peak.grown}


def queued() -> dict[str, Any]:
    """Batches that a `PyDataset` has waiting while a step takes its time."""
    data = Batches()
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(ARRAY[:64], np.ones(64, np.float32), verbose=0)
    gc.collect()
    pause = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.2))
    with Peak() as peak:
        model.fit(data, steps_per_epoch=20, verbose=0, callbacks=[pause])
    found = {finding.id: finding.bytes for finding in legroom.check(data)}
    return {"name": "queue", "predicted": found.get("LR204", 0), "measured": peak.grown}


if __name__ == "__main__":
    special = {"fit": fitted, "queue": queued}.get(sys.argv[1])
    print(json.dumps(measured(sys.argv[1]) if special is None else special()))
