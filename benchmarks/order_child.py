"""One figure of a step whose ops run in order. A child process of order.py.

With a way, the peak of a training that way in a fresh process: Keras's own, guarded, or guarded
and in order. With "predict", what each of them was predicted to take; with "times", how long
guarded steps take with their ops in order and as they come, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("batch", type=int)
parser.add_argument("what", choices=("plain", "guarded", "ordered", "predict", "times"))
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--threads", type=int, default=0, help="inter-op threads; 0 for the default")
parser.add_argument("--limit", type=int, default=0, help="a cap in bytes")
parser.add_argument("--onednn", action="store_true", help="with oneDNN's kernels")
options = parser.parse_args()
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPP_MIN_LOG_LEVEL="3",
                  TF_ENABLE_ONEDNN_OPTS=str(int(options.onednn)))  # fmt: skip

if options.limit:
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(-(-options.limit // 2**20))

import tensorflow as tf  # noqa: E402
from turns import take_turns  # noqa: E402
from zoo import compiled, one_batch  # noqa: E402

from legroom.core.errors import CannotFitError  # noqa: E402
from legroom.guarding.options import GuardOptions, Start  # noqa: E402
from legroom.guarding.registry import registry  # noqa: E402
from legroom.prediction.sources import Prediction  # noqa: E402

STEPS = 8
if options.threads:
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
model = compiled(options.model, options.optimizer, "float32")
data = one_batch(model, options.batch)


def guard(ordered: bool) -> None:
    """Guard the model, whose batches run whole or not at all."""
    start = Start(options.batch, options.batch, 0, ordered=ordered)
    registry.add(model, GuardOptions(slice_size=options.batch, start=start))


def peak() -> dict[str, Any]:
    """The peaks of steady steps; none where the cap is too small."""
    if options.what != "plain":
        guard(options.what == "ordered")
    peaks: list[int] = []
    try:
        model.fit(data, steps_per_epoch=2, verbose=0)
        for _ in range(STEPS):
            tf.config.experimental.reset_memory_stats("CPU:0")
            model.fit(data, steps_per_epoch=1, verbose=0)
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    except (tf.errors.ResourceExhaustedError, CannotFitError):
        peaks = []
    return {"peaks": peaks}


def predict() -> dict[str, Any]:
    """What is predicted for the step as it is and in order."""
    found: dict[str, Any] = {}
    for way, order in (("plain", None), ("ordered", options.batch)):
        for source in ("traced", "probed"):
            began = time.perf_counter()
            made = Prediction(model, source=source, order=order).estimate(options.batch)
            found[f"{way}_{source}"] = {
                "peak": made.peak_bytes,
                "high": max(made.high_bytes, made.first_step_bytes),
                "seconds": time.perf_counter() - began,
            }
    return found


def times() -> dict[str, Any]:
    """The time of ordered steps over that of steps as they come."""
    functions = {}
    for ordered in (False, True):
        guard(ordered)
        model.fit(data, steps_per_epoch=2, verbose=0)
        functions[ordered] = model.train_function
    steps = max(1, min(20, round(0.5 / time_of(functions[False], 1))))
    seconds: dict[bool, list[float]] = {False: [], True: []}

    def turn(ordered: bool) -> float:
        seconds[ordered].append(time_of(functions[ordered], steps))
        return seconds[ordered][-1]

    found = take_turns(lambda: turn(False), lambda: turn(True))
    # On a machine that others use, the quickest rounds are those that were disturbed least.
    return {**found, "quickest": min(seconds[True]) / min(seconds[False])}


def time_of(function: Any, steps: int) -> float:
    model.train_function = function
    began = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0)
    return time.perf_counter() - began


print(json.dumps({"predict": predict, "times": times}.get(options.what, peak)()))
