"""Run one step after another with less and less free memory, and look at what is left.

A child process of test_atomic_step.py: TensorFlow leaves state in a process, and a cap is set once.
For each level of free memory a ballast is placed, the step is run, and where it runs out of memory
everything that a training is must be as it was, bit for bit; with the ballast gone the same step
must then give the same as in a run that nothing disturbed.

Prints one JSON line for each level.
"""

from __future__ import annotations

import gc
import json
import sys

import legroom

LIMIT = 640 * 2**20
legroom.limit(LIMIT)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from legroom.backends.tensorflow.device import oom, pool  # noqa: E402
from legroom.backends.tensorflow.step.step import Step  # noqa: E402
from legroom.backends.tensorflow.step.traits import Traits  # noqa: E402

L = keras.layers
BATCH = 16
PIECE = 2**20
SOUND = 6  # steps before the first that finds too little memory


def cnn():
    """Activations outweigh the weights."""
    return keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            L.Conv2D(32, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Conv2D(32, 3, activation="relu"),
            L.Flatten(),
            L.Dense(10),
        ]
    )


def batchnorm():
    """State that the forward pass writes, and a dropout with a seed of its own."""
    return keras.Sequential(
        [
            keras.Input((48, 48, 3)),
            L.Conv2D(32, 3),
            L.BatchNormalization(),
            L.ReLU(),
            L.Dropout(0.2, seed=3),
            L.Conv2D(32, 3),
            L.BatchNormalization(),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ]
    )


def lstm():
    """A loop in the graph."""
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            L.Embedding(2000, 128),
            L.LSTM(256, dropout=0.1, seed=5),
            L.Dense(10),
        ]
    )


def transformer():
    """Attention with dropout, many small variables."""
    inputs = keras.Input((64,), dtype="int32")
    x = L.Embedding(500, 128)(inputs)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 64, dropout=0.1, seed=7)(x, x))
    x = L.LayerNormalization()(x + L.Dense(128)(L.Dense(512, activation="gelu")(x)))
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling1D()(x)))


def weights():
    """Weights and slots outweigh everything else: memory runs out where they are written."""
    return keras.Sequential(
        [keras.Input((256,)), *[L.Dense(1400, activation="relu") for _ in range(4)], L.Dense(10)]
    )


class Followed(keras.Sequential):
    """A second set of weights follows the first, after the update."""

    def build(self, input_shape):
        super().build(input_shape)
        self.followers = [
            self.add_weight(shape=w.shape, initializer="zeros", trainable=False)
            for w in self.trainable_variables
        ]

    def train_step(self, data):
        logs = super().train_step(data)
        for mine, other in zip(self.followers, self.trainable_variables, strict=True):
            mine.assign(0.9 * mine + 0.1 * tf.sqrt(tf.square(tf.sin(other)) + tf.square(other)))
        return logs


def followed():
    """Memory runs out in what the step does after the update."""
    return Followed(
        [keras.Input((256,)), *[L.Dense(1400, activation="relu") for _ in range(4)], L.Dense(10)]
    )


MODELS = {f.__name__: f for f in (cnn, batchnorm, lstm, transformer, weights, followed)}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.001),
    "adamw": lambda: keras.optimizers.AdamW(0.001, weight_decay=0.01, global_clipnorm=1.0),
    "nadam": lambda: keras.optimizers.Nadam(0.001),
}


def build(kind: str, optimizer: str, mode: str):
    """A compiled model whose every number is the same each time."""
    keras.utils.clear_session()
    keras.config.set_dtype_policy("mixed_float16" if mode == "mixed" else "float32")
    keras.utils.set_random_seed(11)
    model = MODELS[kind]()
    model.compile(
        OPTIMIZERS[optimizer](),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=mode.startswith("eager"),
    )
    return model


def batches(model, count: int):
    """The same data each time."""
    rng = np.random.default_rng(5)
    shape = (BATCH, *model.input_shape[1:])
    for _ in range(count):
        if len(shape) == 2 and shape[1] in (6, 64):
            x = tf.constant(rng.integers(0, 500, shape, dtype=np.int32))
        else:
            x = tf.constant(rng.random(shape, dtype=np.float32))
        yield x, tf.constant(rng.integers(0, 10, BATCH))


def variables(model):
    """Everything that a step may write."""
    return [*model.variables, *model.optimizer.variables, *model.metrics_variables]


def state(model):
    """The values of everything that a step may write."""
    return [variable.numpy().copy() for variable in variables(model)]


def same(one, other) -> bool:
    """Whether two states are the same, bit for bit."""
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def close(one, other) -> float:
    """The largest difference between two states, relative to each variable's own scale."""
    return max(
        float(np.abs(a.astype(float) - b).max() / max(1e-3, np.abs(a.astype(float)).max()))
        for a, b in zip(one, other, strict=True)
        if a.dtype.kind == "f" and a.size
    )


def main(kind: str, optimizer: str, mode: str, slice_size: int, levels: list[float]) -> None:
    """Try every level of free memory, as a part of what the step needs."""
    tf.config.experimental.enable_op_determinism()
    slice_ = slice_size or None
    reference = build(kind, optimizer, mode)
    steps = len(levels) + SOUND
    plain = Step(Traits(reference.train_step, eager=mode.startswith("eager")), model=reference)
    expected = []
    for data in batches(reference, steps):
        plain.run(data, slice_)
        expected.append(state(reference))
    del plain, reference
    gc.collect()

    model = build(kind, optimizer, mode)
    step = Step(Traits(model.train_step, eager=mode.startswith("eager")), model=model)
    if mode.endswith("lean"):
        step.go_lean()
    source = list(batches(model, steps))
    usual = 0
    for number in range(SOUND):
        pool.reset_peak()
        start = pool.in_use_bytes()
        step.run(source[number], slice_)
        need = pool.peak_bytes() - start
        if number:  # the first creates the accumulators
            gc.collect()
            usual = max(usual, pool.in_use_bytes())
    assert same(state(model), expected[SOUND - 1]), "two undisturbed runs differ"
    for level, data, after in zip(levels, source[SOUND:], expected[SOUND:], strict=True):
        before = state(model)
        gc.collect()
        # A tensor gets up to twice its size, as the gap is that the allocator finds: what is in
        # use differs between sound steps too, and a failed one must leave no more than those.
        usual = max(usual, pool.in_use_bytes())
        # In small pieces: the allocator's free memory is not in one, and a piece that finds no
        # place costs ten seconds of waiting.
        target = max(2 * PIECE, int(need * level))
        ballast = []
        while LIMIT - pool.in_use_bytes() > target + PIECE:
            try:
                ballast.append(tf.zeros([PIECE // 4]))
            except tf.errors.ResourceExhaustedError:
                break  # what is free lies in smaller pieces: it is as full as it gets
        free = LIMIT - pool.in_use_bytes()
        failed = None
        try:
            step.run(data, slice_)
        except Exception as error:
            if not oom.is_oom(error):
                raise
            failed = oom.describe(error).op or "?"
        ballast.clear()
        gc.collect()
        untouched = same(before, state(model)) if failed else None
        left = pool.in_use_bytes() / usual
        if failed:
            step.run(data, slice_)
        print(
            json.dumps(
                {
                    "level": level,
                    "free": free,
                    "need": need,
                    "failed_at": failed,
                    "untouched": untouched,
                    "same": same(state(model), after),
                    "difference": close(after, state(model)),
                    "left": left,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    kind, optimizer, mode, slice_size, *levels = sys.argv[1:]
    main(kind, optimizer, mode, int(slice_size), [float(level) for level in levels])
