"""Trains a new model again and again and prints what the memory did; run by test_release.py."""

from __future__ import annotations

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import legroom
from legroom.machine.process import resident_bytes


@tf.custom_gradient
def tripled(x: tf.Tensor) -> tf.Tensor:
    return tf.identity(x), lambda dy: 3.0 * dy


@tf.function
def slope(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tripled(x))
    return tape.gradient(y, x)


@tf.function
def traced_before(x: tf.Tensor) -> tf.Tensor:
    """Its gradient is looked up in the registry only when it is asked for, after the releases."""
    return tf.reduce_sum(tripled(x))


def model(kind: str = "dense") -> keras.Model:
    layers = [keras.layers.Dense(900, "relu"), keras.layers.Dense(10)]
    if kind == "normalized":
        layers[1:1] = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    made = keras.Sequential(layers)
    made.compile("adam", "mse", jit_compile=kind == "compiled")
    return made


def main(mode: str, trainings: int, kind: str = "dense") -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 900), np.float32), rng.random((64, 10), np.float32)
    seen: dict[str, object] = {}
    if mode == "release":
        keras.utils.set_random_seed(7)
        keras.config.set_dtype_policy("mixed_bfloat16")
        slope(tf.ones(3)), traced_before(tf.ones(3))
        kept = model()
        kept.fit(x, y, verbose=0)
    memory = []
    for _ in range(trainings):
        if kind == "guarded":
            legroom.fit(model(), x, y, verbose=0)
        else:
            model(kind).fit(x, y, verbose=0)
        if mode == "release":
            released = legroom.release()
            seen["graphs"] = released.graphs
        memory.append(resident_bytes())
    if mode == "release":
        seen["policy"] = keras.config.dtype_policy().name
        seen["joined"] = len(keras.Sequential([*kept.layers, keras.layers.Dense(1)]).layers)
        before = kept.get_weights()
        kept.fit(x, y, verbose=0)
        seen["trains"] = bool(np.any(before[0] != kept.get_weights()[0]))
        with tf.GradientTape() as tape:
            ones = tf.ones(3)
            tape.watch(ones)
            total = traced_before(ones)
        seen["slopes"] = [
            slope(tf.ones(3)).numpy().tolist(),
            slope(tf.ones(2)).numpy().tolist(),
            tape.gradient(total, ones).numpy().tolist(),
        ]
        # What differentiates through the optimizer's all_reduce still finds its gradient.
        seen["all_reduce"] = through_all_reduce()
    print(json.dumps({"memory": memory, **seen}))


def through_all_reduce() -> list[float]:
    @tf.function
    def reduced(x: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return tf.reduce_sum(2.0 * context.all_reduce("sum", x))

    x = tf.ones(2)
    reduced(x)
    legroom.release()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = reduced(x)
    return tape.gradient(y, x).numpy().tolist()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
