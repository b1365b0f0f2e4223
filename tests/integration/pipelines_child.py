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


def arrays() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(ARRAY).batch(32)


ARRAY = np.random.default_rng(0).random((2500, WIDTH), np.float32)
RULES: dict[str, tuple[str, Callable[[], Any]]] = {
    "LR202": ("buffer", shuffled),
    "LR202 of batches": ("buffer", shuffled_batches),
    "LR203": ("whole", cached),
    "LR204": ("buffer", prefetched),
    "LR205": ("buffer", mapped),
    "LR201": ("whole", arrays),
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
    for _ in range(3):
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


if __name__ == "__main__":
    print(json.dumps(fitted() if sys.argv[1] == "fit" else measured(sys.argv[1])))
