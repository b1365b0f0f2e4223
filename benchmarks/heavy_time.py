"""The time of steps of a heavy model, guarded over plain, turns taken in one process."""

from __future__ import annotations

import functools
import json
import sys
import time

import keras
import tensorflow as tf

import legroom

from heavy_models import build  # isort: skip
from turns import take_turns, untuned  # isort: skip

STEPS = 3  # in one turn
FEWEST = 30


def measure(name: str, optimizer: str, jit: bool) -> dict[str, float]:
    """Take turns and compare."""
    plain, (x, y) = build(name, optimizer, jit=jit)
    guarded = legroom.guard(build(name, optimizer, jit=jit)[0])
    data = untuned(tf.data.Dataset.from_tensors((x, y)).repeat(STEPS))

    def turn(model: keras.Model) -> float:
        began = time.perf_counter()
        model.fit(data, verbose=0)
        return time.perf_counter() - began

    for model in (plain, guarded) * 3:
        turn(model)
    seen = take_turns(
        functools.partial(turn, plain), functools.partial(turn, guarded), fewest=FEWEST
    )
    return {**seen, "plain_ms": seen["plain_seconds"] / STEPS * 1e3}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3:] == ["--jit"])))
