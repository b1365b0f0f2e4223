"""A ballast moves up until a step of PyTorch fails at every place in turn; prints what was seen.

Run as a process of its own, because its address space is limited for good.
"""

from __future__ import annotations

import copy
import gc
import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

kind, levels = sys.argv[1], int(sys.argv[2])
if kind == "keras":
    import keras

import legroom  # noqa: E402
from legroom.backends.base import named  # noqa: E402
from legroom.backends.torch.step.functions import GuardedFunction  # noqa: E402
from legroom.core.errors import LegroomError  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
WIDTH, SAMPLES = 500, 256
X, Y = torch.randn(SAMPLES, WIDTH), torch.randint(0, 5, (SAMPLES,))


def plain():
    """A step that changes all kinds of state."""
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5),
    )  # fmt: skip
    moves = {"adam": torch.optim.Adam, "foreach": torch.optim.Adam, "sgd": torch.optim.SGD}[kind](
        model.parameters(), lr=0.01, **({"foreach": True} if kind == "foreach" else {})
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scheduler = torch.optim.lr_scheduler.StepLR(moves, 3, 0.5)

    def step(x, y):
        moves.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(moves)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(moves)
        scaler.update()
        scheduler.step()
        return loss.detach() + model.training

    parts = (model, moves, scaler, scheduler)

    def state():
        return copy.deepcopy([part.state_dict() for part in parts]), torch.get_rng_state()

    def load(saved):
        for part, values in zip(parts, copy.deepcopy(saved[0]), strict=True):
            part.load_state_dict(values)
        if not saved[0][1]["state"]:
            moves.state.clear()  # what is born is unborn again
        torch.set_rng_state(saved[1])

    return step, state, load


def in_turn():
    """Two updates, the second of which runs out when the first one is made; run in slices."""
    judge = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    maker = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    moves = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (judge, maker)]

    def step(x, y):
        moves[0].zero_grad()
        made = maker(torch.randn_like(x))
        loss = functional.softplus(judge(made.detach()) - judge(x)).mean()
        loss.backward()
        moves[0].step()
        moves[1].zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        moves[1].step()
        return loss.detach()

    parts = (judge, maker, *moves)

    def state():
        return copy.deepcopy([part.state_dict() for part in parts]), torch.get_rng_state()

    def load(saved):
        for part, values in zip(parts, copy.deepcopy(saved[0]), strict=True):
            part.load_state_dict(values)
        for optimizer, values in zip(moves, saved[0][2:], strict=True):
            if not values["state"]:
                optimizer.state.clear()
        torch.set_rng_state(saved[1])

    return step, state, load


def by_keras():
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.BatchNormalization(),
         keras.layers.Dropout(0.3), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(5)]
    )  # fmt: skip
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True), metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    legroom.guard(model, slice_size=SAMPLES)  # which leaves nothing to try after a failure
    model.train_on_batch(X[:2], Y[:2])
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]

    def state():
        values = [v.value.detach().clone() for v in variables]
        return values, torch.get_rng_state()

    def load(saved):
        with torch.no_grad():
            for variable, value in zip(variables, saved[0], strict=True):
                variable.value.copy_(value)
        torch.set_rng_state(saved[1])

    return lambda x, y: model.train_function([(x, y)]), state, load


class OnlyTries:
    """Runs a backend's step, and does not try again."""

    def __init__(self, step):
        self._step = step

    def __call__(self, data):
        return self._step.run(data, SAMPLES // 4 if kind == "in_turn" else None)


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def same(one, other):
    if len(leaves(one)) != len(leaves(other)):
        return False
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(a == b if isinstance(a, str) else np.array_equal(a, b) for a, b in pairs)


step, state, load = {"keras": by_keras, "in_turn": in_turn}.get(kind, plain)()
run = step if kind == "keras" else GuardedFunction(step, OnlyTries)
before = state()
run(X, Y)
after = state()
load(before)
device = named("torch").device
seen = {"done": 0, "undone": 0, "torn": 0, "places": []}
most = 24 * 2**20
device.set_limit(4 * most)
for level in range(levels):
    gc.collect()
    left = device.limit_bytes() - device.in_use_bytes()
    ballast = torch.empty(left - most * (level + 1) // levels, dtype=torch.uint8)
    try:
        run(X, Y)
        failed = None
    except (RuntimeError, MemoryError, LegroomError) as error:
        failed = f"{type(error).__name__}: {error}"[:80]
    del ballast
    gc.collect()
    now = state()
    if same(now, after):
        seen["done"] += 1
    elif same(now, before):
        seen["undone"] += 1
    else:
        seen["torn"] += 1
        seen["places"].append([level, failed])
    load(before)
print(json.dumps(seen))
