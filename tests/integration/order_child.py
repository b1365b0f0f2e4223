"""A training whose ops run in order, by a plan, beside Keras's own. A child of test_order.py.

Without a limit it compares the two; with one it tries both in it. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0")
LIMIT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if LIMIT:
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(LIMIT // 2**20)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

import legroom  # noqa: E402
from legroom.core.errors import CannotFitError  # noqa: E402
from legroom.guarding.options import GuardOptions, Start  # noqa: E402
from legroom.guarding.registry import registry  # noqa: E402

tf.config.threading.set_inter_op_parallelism_threads(4)  # ops run side by side on any machine
BATCH = 16
X = np.random.default_rng(0).random((2 * BATCH, 96, 96, 3), dtype="float32")


def unet(**options):
    """Which slices would change: its normalization takes statistics of the whole batch."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((96, 96, 3))
    skips = []
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.1)(layers.BatchNormalization()(x))
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(3, 1)(x))
    model.compile("sgd", "mse", **options)
    return model


def train(model, fit=None, **options):
    """What became of the weights, and the most that was in memory beside what was before."""
    keras.utils.set_random_seed(8)
    held = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    fit = fit or type(model).fit
    history = fit(model, X, X, batch_size=BATCH, shuffle=False, verbose=0, **options)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - held
    return [v.numpy() for v in model.variables], peak, history


def plan(model, memory, **options):
    return legroom.plan(model, BATCH, memory=memory, source="traced", exact=True, **options)


def compare():
    """The same weights from less memory; and what is refused."""
    high = legroom.estimate(unet(), BATCH, source="traced").high_bytes
    made = plan(unet(), int(0.7 * high))
    plain, most, _ = train(unet())
    several = unet(steps_per_execution=2)
    ordered, least, history = train(
        several, legroom.fit, plan=legroom.Plan.from_json(made.to_json())
    )
    applied, _, _ = train(made.apply(unet()))
    refused = {}
    for option in ("run_eagerly", "jit_compile"):
        try:
            plan(unet(**{option: True}), int(0.4 * high), allow=("order",))
        except CannotFitError as error:
            refused[option] = str(error)
    return {
        "chosen": made.chosen.name,
        "ways": {w.name: [w.peak_bytes, w.time_factor, w.reason]
                 for w in (made.chosen, *made.alternatives)},
        "same": [all(map(np.array_equal, plain, other)) for other in (ordered, applied)],
        "peaks": [most, least],
        "told": [event.data for event in history.legroom.events if event.data.get("order")],
        "refused": refused,
    }  # fmt: skip


def survive():
    """In a cap that is too small for Keras's own steps: with luck some of them run, but not all."""
    model = unet()
    start = Start(BATCH, BATCH, peak_bytes=0, ordered=True)
    registry.add(model, GuardOptions(exact=True, start=start))
    weights, _, history = train(model, epochs=6)
    report = history.legroom
    try:
        train(unet(), epochs=6)
        plain = "it fits"
    except tf.errors.ResourceExhaustedError as error:
        plain = type(error).__name__
    return {
        "ooms": report.ooms,
        "whole": report.slice_size == BATCH,
        "finite": all(np.isfinite(value).all() for value in weights),
        "plain": plain,
    }


print(json.dumps(survive() if LIMIT else compare()), flush=True)
