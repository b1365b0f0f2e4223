"""Steps in plain PyTorch, trained plainly, guarded whole, and in slices."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import legroom
from legroom.core.events import listening

GENERATOR = torch.Generator().manual_seed(0)
BATCHES = [
    (torch.randn(n, 12, generator=GENERATOR), torch.randint(0, 5, (n,), generator=GENERATOR))
    for n in (16, 16, 12)
]
LOSS = functional.cross_entropy


def net(dropout=0.0, norm=False):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 24), *([nn.BatchNorm1d(24)] if norm else []), nn.Tanh(), nn.Dropout(dropout),
        nn.Linear(24, 24), nn.Tanh(), nn.Dropout(dropout), nn.Linear(24, 5),
    )  # fmt: skip


def train(make, decorate, epochs=2, batches=BATCHES):
    """Run a step over the batches; returns all that it changed, and its losses."""
    torch.manual_seed(0)
    step, *parts = make()
    step = decorate(step)
    torch.manual_seed(1)
    losses = [float(step(*given)) for _ in range(epochs) for given in batches]
    state = [copy.deepcopy(part.state_dict()) for part in parts]
    return state, losses, torch.get_rng_state()


def numbers(state):
    if isinstance(state, torch.Tensor):
        return [state.double().numpy()]
    if isinstance(state, dict):
        return [x for key in state for x in numbers(state[key])]
    if isinstance(state, (list, tuple)):
        return [x for part in state for x in numbers(part)]
    return [np.array(float(state))] if isinstance(state, (int, float)) else []


def compare(make, refused=None, changes=None, tolerance=1e-5, batches=BATCHES, size=5,
            exactly=False, **more):  # fmt: skip
    """Plain, guarded whole and in slices: all that a step changes must come out the same.

    Args:
        make: Makes the step and what it changes.
        refused: Part of the reason for which it runs whole.
        changes: Part of the note that slices make a difference.
        tolerance: How far numbers may be apart.
        batches: The arguments of each call.
        size: The size of slices.
        exactly: Whether it comes out the same, whatever the note says.
        more: Other options of the guard.
    """
    plain = train(make, lambda step: step, batches=batches)
    for options in ({}, {"slice_size": size}):
        events = []
        with listening(events.append):
            guarded = train(make, legroom.step(**options, **more), batches=batches)
        notes = [event.text for event in events if event.name == "note"]
        sliced = {event.data["slice_size"] for event in events if event.name == "plan"}
        if options:
            wanted = refused or changes
            assert [wanted in note for note in notes] == [True] if wanted else not notes, notes
            assert sliced == (set() if refused else {size}), (sliced, notes)
        if exactly or not (options and changes):
            for one, other in zip(numbers(plain[0]), numbers(guarded[0]), strict=True):
                assert np.abs(one - other).max(initial=0) <= tolerance
            np.testing.assert_allclose(plain[1], guarded[1], rtol=1e-4, atol=1e-6)
            assert torch.equal(plain[2], guarded[2])


def ordinary(optimizer=torch.optim.SGD, loss=LOSS, dropout=0.0, norm=False, **options):
    def make():
        model = net(dropout, norm)
        moves = optimizer(model.parameters(), lr=0.05, **options)

        def step(x, y):
            moves.zero_grad()
            value = loss(model(x), y)
            value.backward()
            moves.step()
            return value.item()

        return step, model, moves

    return make
