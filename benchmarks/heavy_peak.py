"""One training of a heavy model under a cap, plain or guarded: does it train, peak and time.

A child process of run.py, because a cap is set once for a process.
"""

from __future__ import annotations

import argparse
import json
import time

import legroom

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("optimizer")
parser.add_argument("--limit", type=int, default=16 * 2**30, help="the cap in bytes")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--jit", action="store_true")
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()
legroom.limit(options.limit)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from clock import StepClock  # noqa: E402
from heavy_models import build  # noqa: E402

model, (x, y) = build(options.model, options.optimizer, jit=options.jit)
tf.config.experimental.reset_memory_stats("CPU:0")
clock = StepClock()
data = tf.data.Dataset.from_tensors((x, y)).repeat(options.steps)
began = time.perf_counter()
said: list[str] = []
try:
    if options.plain:
        model.fit(data, verbose=0, callbacks=[clock])
    else:
        report = legroom.fit(model, data, verbose=0, callbacks=[clock]).legroom
        said = [event.text for event in report.events if event.text]
except (legroom.CannotFitError, tf.errors.ResourceExhaustedError) as error:
    print(json.dumps({"fits": False, "error": str(error)[:300]}))
    raise SystemExit from None


def nbytes(variables: list[keras.Variable]) -> int:
    """What variables take."""
    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)


weights = model.trainable_variables
steps = sorted(clock.steps[0][2:])
print(
    json.dumps(
        {
            "fits": True,
            "peak": tf.config.experimental.get_memory_info("CPU:0")["peak"],
            "step": steps[len(steps) // 2],
            "total": time.perf_counter() - began,
            "state": nbytes([*weights, *model.optimizer.variables]),
            "gradients": nbytes(weights),
            "largest": max(nbytes([weight]) for weight in weights),
            "checksum": sum(float(np.abs(w.numpy()).sum(dtype=float)) for w in weights),
            "said": said,
        }
    )
)
