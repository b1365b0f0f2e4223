"""Loops by hand on JAX that are killed: `kept_jax_loop_child.py CASE+CASE+… OUT`.

One script trains several small models, one after the other, without Keras. What each training came
to, and how often it has seen each sample, is written to OUT.
"""

from __future__ import annotations

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

import legroom

SAMPLES, FEATURES, EPOCHS, BATCH = 240, 8, 3, 16
PAUSE = float(os.environ.get("KEPT_PAUSE", "0.01"))
MOVES = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01))


class Shuffled:
    """Batches in an order that is drawn for each pass."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
        self.y = self.x.sum(1)

    def __iter__(self):
        order = np.random.permutation(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            rows = order[start : start + BATCH]
            noise = np.random.normal(size=len(rows)).astype("float32")
            yield rows, self.x[rows], self.y[rows] + 0.1 * noise


def loss_of(weights, x, y, key):
    hidden = jnp.tanh(x @ weights["one"])
    hidden = jnp.where(jax.random.bernoulli(key, 0.7, hidden.shape), hidden / 0.7, 0)
    return ((hidden @ weights["two"] - y) ** 2).mean()


@legroom.step
@jax.jit
def step(weights, slots, key, counts, rows, x, y):
    key, own = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y, own)
    updates, slots = MOVES.update(gradients, slots, weights)
    return optax.apply_updates(weights, updates), slots, key, counts.at[rows].add(1), loss


def trees():
    """Weights in a dict, the tuples of optax, keys of both kinds; a list of numbers beside them."""
    weights = {"one": jnp.ones((FEATURES, 6)) * 0.1, "two": jnp.arange(6) * 0.1}
    state = {"weights": weights, "slots": MOVES.init(weights), "key": jax.random.key(3),
             "old key": jax.random.PRNGKey(1), "counts": jnp.zeros(SAMPLES), "losses": [],
             "best": 9.0}  # fmt: skip
    for _ in range(EPOCHS):
        for rows, x, y in legroom.resumable(Shuffled(), state):
            made = step(*(state[k] for k in ("weights", "slots", "key", "counts")), rows, x, y)
            state["weights"], state["slots"], state["key"], state["counts"], loss = made
            state["losses"].append(float(loss))
            state["best"] = min(state["best"], float(loss))
            time.sleep(PAUSE)
        state["losses"].append(float(np.random.random()))
    kept = [state["weights"], state["slots"], jax.random.key_data(state["key"])]
    return state["counts"], [*jax.tree.leaves(kept), state["losses"], state["best"]]


def train_state():
    """flax's TrainState, which is replaced as a whole."""
    net = linen.Dense(1)
    weights = net.init(jax.random.key(0), np.ones((1, FEATURES)))["params"]
    made = TrainState.create(apply_fn=net.apply, params=weights, tx=MOVES)
    state = {"train": made, "counts": jnp.zeros(SAMPLES)}

    @jax.jit
    def own_step(train, counts, rows, x, y):
        def loss(weights):
            return ((train.apply_fn({"params": weights}, x)[:, 0] - y) ** 2).mean()

        return train.apply_gradients(grads=jax.grad(loss)(train.params)), counts.at[rows].add(1)

    for _ in range(EPOCHS):
        for rows, x, y in legroom.resumable(Shuffled(), state):
            state["train"], state["counts"] = own_step(state["train"], state["counts"], rows, x, y)
            time.sleep(PAUSE)
    return state["counts"], jax.tree.leaves(state["train"])


def objects():
    """A model and an optimizer of flax.nnx, with dropout."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.one = nnx.Linear(FEATURES, 6, rngs=rngs)
            self.drop = nnx.Dropout(0.3, rngs=rngs)
            self.two = nnx.Linear(6, 1, rngs=rngs)
            self.counts = nnx.Variable(jnp.zeros(SAMPLES))

        def __call__(self, x):
            return self.two(self.drop(jnp.tanh(self.one(x))))[:, 0]

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, MOVES, wrt=nnx.Param)

    @nnx.jit
    def own_step(model, optimizer, rows, x, y):
        gradients = nnx.grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, gradients)
        model.counts[...] = model.counts[...].at[rows].add(1)

    for _ in range(EPOCHS):
        for batch in legroom.resumable(Shuffled(), {"model": model, "optimizer": optimizer}):
            own_step(model, optimizer, *batch)
            time.sleep(PAUSE)
    leaves = jax.tree.leaves(nnx.state((model, optimizer)))
    plain = [x for x in leaves if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return model.counts[...], plain


def main():
    cases, out = sys.argv[1:]
    results = {}
    for case in cases.split("+"):
        np.random.seed(7)
        counts, values = {"trees": trees, "train_state": train_state, "objects": objects}[case]()
        results[f"{case} counts"] = np.array(counts)
        results |= {f"{case} {number}": np.array(value) for number, value in enumerate(values)}
    assert not {"keras", "tensorflow", "torch"} & set(sys.modules)
    np.savez(out, **results)
    print("finished", cases)


if __name__ == "__main__":
    main()
