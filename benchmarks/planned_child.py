"""One training under a cap: by a plan, as the guard alone begins, or in slices fixed by hand.

A child process of planned.py, because a cap is set once for a process, and what one training
leaves in the pool is counted against the next.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import legroom

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("batch", type=int)
parser.add_argument("--limit", type=int, required=True, help="the cap in bytes")
parser.add_argument("--unplanned", action="store_true", help="let the guard find its own start")
parser.add_argument("--slice-size", type=int, help="slices fixed by hand")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--optimizer", default="adam")
options = parser.parse_args()
legroom.limit(options.limit)

import tensorflow as tf  # noqa: E402
from clock import StepClock  # noqa: E402
from zoo import compiled, one_batch  # noqa: E402

STEPS = 4
try:
    model = compiled(options.model, options.optimizer, "float32")
    data = one_batch(model, options.batch)
except tf.errors.ResourceExhaustedError:
    print(json.dumps({"fits": False, "why": "not even the model could be made"}))
    raise SystemExit from None
found: dict[str, object] = {}
plan = None
try:
    began = time.perf_counter()
    if not options.unplanned and options.slice_size is None:
        plan = legroom.plan(model, options.batch, memory=options.limit)
        found |= {"way": plan.chosen.name, "sure": plan.chosen.sure}
        found["planning"] = time.perf_counter() - began
    clock = StepClock()
    history = legroom.fit(
        model, data, steps_per_epoch=STEPS, epochs=options.epochs, verbose=0, callbacks=[clock],
        plan=plan, slice_size=options.slice_size,
    )  # fmt: skip
    report = history.legroom
    found |= {
        "fits": True,
        "ooms": report.ooms,
        "slice_size": report.slice_size,
        "peak": report.peak_bytes,
        "first_epoch": clock.seconds[0],
        # The quickest step of the later epochs: in the first, functions are traced.
        "step": min(itertools.chain(*(clock.steps[1:] or clock.steps))),
    }
except legroom.CannotFitError as error:
    found |= {"fits": False, "why": str(error)}
print(json.dumps(found))
