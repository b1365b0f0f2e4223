"""One training under a cap: by a plan, as the guard alone begins, or in slices fixed by hand.

A child process of planned.py, because a cap is set once for a process. With --fixed, slices of all
powers of two are tried after the training, in the same process, until one does not fit.
"""

from __future__ import annotations

import argparse
import json
import time

import legroom

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("batch", type=int)
parser.add_argument("--limit", type=int, required=True, help="the cap in bytes")
parser.add_argument("--unplanned", action="store_true", help="let the guard find its own start")
parser.add_argument("--fixed", action="store_true", help="try every fixed size as well")
parser.add_argument("--optimizer", default="adam")
options = parser.parse_args()
legroom.limit(options.limit)

from clock import Clock  # noqa: E402
from zoo import compiled, one_batch  # noqa: E402

STEPS, EPOCHS = 4, 4


def train(**how: object) -> dict[str, object]:
    """Train, and tell how it went."""
    clock = Clock()
    history = legroom.fit(model, data, steps_per_epoch=STEPS, epochs=EPOCHS, verbose=0,
                          callbacks=[clock], **how)  # fmt: skip
    report = history.legroom
    return {
        "ooms": report.ooms,
        "slice_size": report.slice_size,
        "peak": report.peak_bytes,
        "first_epoch": clock.seconds[0],
        "step": min(clock.seconds[1:]) / STEPS,
    }


model = compiled(options.model, options.optimizer, "float32")
data = one_batch(model, options.batch)
found: dict[str, object] = {}
try:
    began = time.perf_counter()
    plan = None
    if not options.unplanned:
        plan = legroom.plan(model, options.batch, memory=options.limit)
        found["way"] = plan.chosen.name
        found["planning"] = time.perf_counter() - began
    found |= train(plan=plan)
    found["fits"] = True
except legroom.CannotFit as error:
    found |= {"fits": False, "why": str(error)}
if options.fixed and found["fits"]:
    fixed = {}
    size = 1
    while size < 2 * options.batch:
        try:
            fixed[min(size, options.batch)] = train(slice_size=min(size, options.batch))["step"]
        except legroom.CannotFit:
            break
        size *= 2
    found["fixed"] = fixed
print(json.dumps(found))
