"""A ballast moves up until a step by hand on JAX fails at every place in turn: one JSON line each.

`jax_loop_child.py LEVELS KIND…`. Run as a process of its own, because its address space is limited
for good. "plain" is the step without legroom, which gives its weights away and loses them.
"""

from __future__ import annotations

import gc
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legroom
from legroom.backends.base import named
from legroom.core.errors import LegroomError

SAMPLES, SIDE, DEPTH = 2048, 512, 8
RNG = np.random.default_rng(5)
X = RNG.normal(size=(SAMPLES, SIDE)).astype("float32")
Y = RNG.normal(size=SAMPLES).astype("float32")
MOVES = optax.adam(1e-3)
# More than each of these steps needs, in MiB.
MOST = {"kept": 130, "donated": 130, "sliced": 120, "plain": 55}


def loss_of(weights, x, y, key):
    for name in sorted(weights):
        x = jnp.tanh(x @ weights[name])
    x = jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x / 0.7, 0)
    return ((x.sum(1) - y) ** 2).mean()


def step(weights, slots, x, y, key):
    key, own = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y, own)
    updates, slots = MOVES.update(gradients, slots, weights)
    return optax.apply_updates(weights, updates), slots, key, loss


def fresh():
    keys = jax.random.split(jax.random.key(0), DEPTH)
    weights = {f"layer{i}": jax.random.normal(k, (SIDE, SIDE)) * 0.04 for i, k in enumerate(keys)}
    return jax.block_until_ready((weights, MOVES.init(weights), jax.random.PRNGKey(7)))


def numbers(state):
    return [np.array(x) for x in jax.tree.leaves(state)]


def same(one, other):
    return all(map(np.array_equal, one, other))


def ballast(kind, level, levels):
    """Leaves more and more."""
    device = named("jax").device
    gc.collect()
    device.forget_cached()
    left = device.limit_bytes() - device.in_use_bytes()
    return np.empty(max(0, left - MOST[kind] * 2**20 * (level + 1) // levels), np.uint8)


def walk(kind, levels):
    """The same step at each level of free memory."""
    donates = (0, 1) if kind != "kept" else ()
    compiled = jax.jit(step, donate_argnums=donates)
    if kind != "plain":  # fixed slices leave nothing to try after a failure
        size = SAMPLES // 4 if kind == "sliced" else SAMPLES
        compiled = legroom.step(slice_size=size)(compiled)

    def call(state):
        weights, slots, key = state
        return compiled(weights, slots, X, Y, key)

    before, after = numbers(fresh()), numbers(call(fresh())[:3])
    seen = {"kind": kind, "done": 0, "undone": 0, "torn": [], "lost": []}
    # With less, it ends the process.
    for level in range(levels * 2 // 3 if kind == "plain" else 0, levels):
        state = fresh()
        held, failed, made = ballast(kind, level, levels), "", None
        try:
            made = jax.block_until_ready(call(state))
        except (RuntimeError, MemoryError, LegroomError) as error:
            failed = f"{type(error).__name__}: {error}"[:90]
        del held
        gc.collect()
        try:
            now = numbers(state if made is None else made[:3])
        except (RuntimeError, TypeError):
            seen["lost"].append([level, failed])
            continue
        if same(now, before if made is None else after):
            seen["undone" if made is None else "done"] += 1
        else:
            seen["torn"].append([level, failed])
    return seen


def main():
    levels, kinds = int(sys.argv[1]), sys.argv[2:]
    named("jax").device.set_limit(3 * 2**28)
    for kind in kinds:
        print(json.dumps(walk(kind, levels)), flush=True)


if __name__ == "__main__":
    main()
