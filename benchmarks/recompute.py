"""What recomputing saves and costs: ResNet50 and a transformer of 12 blocks.

    python benchmarks/recompute.py ResNet50 48
    python benchmarks/recompute.py deep_transformer 32

Four ways of the same step take turns in one process: plain; a plan for half of the plain
activations; every block recomputed (uniform); and blocks chosen for what uniform needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="3")

import tensorflow as tf
from zoo import compiled, one_batch

from legroom.backends.keras.recompute_blocks import block_order, recomputing
from legroom.planning.recomputed import Recompute
from legroom.prediction.sources import Prediction

ROUNDS = 10
Blocks = tuple[tuple[str, ...], ...]
name, batch = sys.argv[1], int(sys.argv[2])
model = compiled(name, "adam", "float32")
data = one_batch(model, batch)


def uniform() -> Blocks:
    """Each of the model's own blocks by itself."""
    chain = next(iter(block_order(model)))
    if name == "ResNet50":
        prefixes = dict.fromkeys("_".join(n.split("_")[:2]) for n in chain if "block" in n)
        return tuple(tuple(n for n in chain if n.startswith(f"{p}_")) for p in prefixes)
    inner = chain[1:-1]  # without the embedding and the head
    return tuple(tuple(inner[i : i + 8]) for i in range(0, len(inner), 8))


def choose(budget: int) -> Blocks:
    """The blocks that legroom recomputes in so much memory, error bar included."""
    way = recompute.whole(budget)
    assert way is not None
    return way.recompute


def run(function: Any) -> None:
    model.train_function = function
    model.fit(data, steps_per_epoch=1, verbose=0)


prediction = Prediction(model)
whole = prediction.estimate(batch)
recompute = Recompute(prediction, batch, whole)
parts = whole.breakdown
held = parts["weights"] + parts["optimizer"] + parts["input"]
by_block = uniform()
ways: dict[str, Blocks] = {
    "plain": (),
    "half": choose(held + (whole.peak_bytes - held) // 2),
    "uniform": by_block,
    "like uniform": choose(recompute.peak(by_block)),
}
functions, found = {}, {way: {"seconds": []} for way in ways}  # type: ignore[var-annotated]
for way, blocks in ways.items():
    with recomputing(model, blocks):
        run(None)  # traced with these blocks, and kept
        functions[way] = model.train_function
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    run(functions[way])
    found[way]["layers"] = sum(map(len, blocks))
    found[way]["activations"] = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
for _ in range(ROUNDS):
    for way, function in functions.items():
        began = time.perf_counter()
        run(function)
        found[way]["seconds"].append(time.perf_counter() - began)
for figures in found.values():
    figures["memory"] = figures["activations"] / found["plain"]["activations"]
    # The quickest of each: at its end a fit may wait for tf.data's tuning thread, which wakes after
    # 0.01, 0.02, 0.04, … seconds: 5.11 in all, whichever way the step ran.
    figures["time"] = min(figures["seconds"]) / min(found["plain"]["seconds"])
print(json.dumps(found))
