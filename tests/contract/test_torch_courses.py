"""Steps in plain PyTorch that do something else on a part of a batch, or on some calls only."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from .torch_steps import BATCHES, LOSS, compare, net  # noqa: E402

pytestmark = pytest.mark.on_torch("needs no Keras")


def in_small_parts():
    """Adds up gradients by hand, of four samples each: in the few that are tried there is one."""
    model = net()
    moves = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y):
        moves.zero_grad()
        total = 0.0
        for some, labels in zip(x.split(4), y.split(4), strict=True):
            loss = LOSS(model(some), labels, reduction="sum") / len(x)
            loss.backward()
            total += loss.item()
        moves.step()
        return total

    return step, model, moves


def test_more_backward_passes_than_on_a_few_samples():
    compare(in_small_parts, changes="it calls backward() more often", exactly=True, size=6)


def test_a_batch_that_the_step_leaves_out():
    """A batch with a loss that is no number is not trained on, and neither is a part of it."""

    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            loss = LOSS(model(x), y)
            if not torch.isfinite(loss):
                return 0.0
            loss.backward()
            moves.step()
            moves.zero_grad()
            return loss.item()

        return step, model, moves

    broken = BATCHES[1][0].clone()
    broken[9, 3] = torch.nan
    batches = [BATCHES[0], (broken, BATCHES[1][1]), BATCHES[2]]
    compare(make, batches=batches, changes="a slice of it returns before backward()", exactly=True)


def test_a_second_update_on_some_calls():
    def make():
        judge, maker = net(), net()
        moves = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (judge, maker)]

        def step(x, y, number):
            moves[0].zero_grad()
            loss = LOSS(judge(x) + maker(x).detach(), y)
            loss.backward()
            moves[0].step()
            if number % 2:
                moves[1].zero_grad()
                functional.mse_loss(maker(x), judge(x).detach()).backward()
                moves[1].step()
            return loss.item()

        return step, judge, maker, *moves

    compare(make, batches=[(x, y, number) for number, (x, y) in enumerate(BATCHES)])


def test_a_coin_for_the_whole_batch():
    """In the few samples that are tried it may well fall the same way in each part."""

    def make():
        random.seed(0)
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            if random.random() < 0.1:
                x = x.flip(1)
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, moves

    compare(make, refused="it draws its own random numbers (random)")
