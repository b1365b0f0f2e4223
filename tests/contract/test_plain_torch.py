"""Training steps in plain PyTorch: in slices they are the step of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import legroom  # noqa: E402
from legroom.core.events import listening  # noqa: E402

from .torch_steps import BATCHES, LOSS, compare, net, numbers, ordinary, train  # noqa: E402

pytestmark = pytest.mark.on_torch("needs no Keras")


@pytest.mark.parametrize(
    "case",
    [
        ordinary(),
        ordinary(momentum=0.9, nesterov=True),
        ordinary(loss=lambda z, y: LOSS(z, y, reduction="sum") / 100),
        ordinary(loss=lambda z, y: LOSS(z, y) + 0.1 * LOSS(-z, y)),
        ordinary(dropout=0.4),
        ordinary(foreach=True),
        ordinary(torch.optim.RMSprop, eps=0.01),
    ],
    ids=["sgd", "nesterov", "sum", "two terms", "dropout", "foreach", "rmsprop"],
)
def test_the_same_step(case):
    compare(case)


WEIGHTS = torch.linspace(0.2, 3.0, 5)


def padded(z, y, **options):
    """As of padded text: of the samples with one label nothing counts."""
    return LOSS(z, torch.where(y == 2, -100, y), **options)


def half(z, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return padded(z @ torch.eye(5), y)


@pytest.mark.parametrize(
    ("loss", "tolerance"),
    [
        (padded, 1e-5),
        (lambda z, y: padded(z, y, label_smoothing=0.1) / 3, 1e-5),
        (lambda z, y: LOSS(z, y, weight=WEIGHTS), 1e-5),
        (lambda z, y: functional.nll_loss(z.log_softmax(1), y, WEIGHTS, ignore_index=4), 1e-5),
        (lambda z, y: padded(z, y) + 0.1 * z.square().mean(), 1e-5),
        (lambda z, y: padded(z, y) + LOSS(z, y, weight=WEIGHTS), 1e-5),
        (half, 2e-3),
    ],
    ids=["padded", "smooth", "weights", "nll", "penalty", "two counts", "half"],
)
def test_losses_that_count_something_else_than_samples(loss, tolerance):
    compare(ordinary(loss=loss), tolerance=tolerance)


def test_a_slice_in_which_nothing_counts():
    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            moves.zero_grad()
            loss = LOSS(model(x), y, ignore_index=-100, label_smoothing=0.1)
            loss.backward()
            moves.step()
            return loss.item()

        def with_padding(x, y):
            return decorated[0](x, torch.where(torch.arange(len(y)) < 6, -100, y))

        decorated = [step]
        return step, with_padding, decorated, model

    weights = []
    for decorate in (lambda step: step, legroom.step(slice_size=5)):
        step, run, decorated, model = make()
        decorated[0] = decorate(step)
        losses = [run(x, y) for x, y in BATCHES]
        assert np.isfinite(losses).all()
        weights.append((losses, numbers(model.state_dict())))
    np.testing.assert_allclose(weights[0][0], weights[1][0], rtol=1e-5)
    for one, other in zip(weights[0][1], weights[1][1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_gradients_of_several_batches_whose_slices_count_differently():
    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)
        calls = [0]

        def step(x, y):
            loss = padded(model(x), y) / 2
            loss.backward()
            calls[0] += 1
            if calls[0] % 2 == 0:
                moves.step()
                moves.zero_grad()
            return loss.item()

        return step, model, moves

    compare(make)


def test_adam():
    compare(ordinary(torch.optim.Adam, eps=1e-3), tolerance=1e-4)


def test_all_that_people_put_into_a_step():
    def make():
        model = net(0.2)
        moves = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(moves, 2, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step(x, y):
            moves.zero_grad()
            with torch.autocast("cpu", enabled=False):
                loss = LOSS(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(moves)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(moves)
            scaler.update()
            scheduler.step()
            return loss.item()

        return step, model, moves, scheduler, scaler

    compare(make)


def two_optimizers():
    one, other = net(), net()
    moves = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (one, other)]

    def step(x, y):
        for model, optimizer in zip((one, other), moves, strict=True):
            optimizer.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    return step, one, other, *moves


def gan(noise=torch.randn, critics=1, scaled=False):
    """As in PyTorch's own tutorial: noise that both updates use, two losses for one of them."""

    def make():
        torch.manual_seed(0)
        judge = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))
        maker = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 12))
        moves = [
            torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9),
            torch.optim.RMSprop(maker.parameters(), lr=0.01, eps=0.01),
        ]
        rates = torch.optim.lr_scheduler.ExponentialLR(moves[0], 0.9)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)

        def loss_of(scores, real):
            wanted = torch.full_like(scores, float(real))
            return functional.binary_cross_entropy_with_logits(scores, wanted)

        def step(x, y):
            for _ in range(critics):
                judge.zero_grad()
                on_real = loss_of(judge(x), 1)
                scaler.scale(on_real).backward()
                made = maker(noise(len(x), 4))
                on_made = loss_of(judge(made.detach()), 0)
                scaler.scale(on_made).backward()
                scaler.unscale_(moves[0])
                nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
                scaler.step(moves[0])
            rates.step()
            maker.zero_grad()
            loss = loss_of(judge(made), 1)
            scaler.scale(loss).backward()
            scaler.step(moves[1])
            scaler.update()
            return loss.item() + 10 * on_real.item() + 100 * on_made.item()

        return step, judge, maker, *moves, rates, scaler

    return make


@pytest.mark.parametrize(
    "case",
    [two_optimizers, gan(), gan(torch.rand), gan(critics=3), gan(scaled=True)],
    ids=["two models", "gan", "even noise", "three critics", "scaled"],
)
def test_a_step_that_updates_in_turn(case):
    compare(case)


def test_several_optimizers_after_one_backward():
    """One for the first layers and one for the rest, as for sparse and dense weights."""

    def make():
        model = net()
        moves = [
            torch.optim.SGD(model[:3].parameters(), lr=0.05, momentum=0.9),
            torch.optim.RMSprop(model[3:].parameters(), lr=0.01, eps=0.01),
        ]

        def step(x, y):
            for one in moves:
                one.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            for one in moves:
                one.step()
            return loss.item()

        return step, model, *moves

    compare(make)


def test_gradients_cleared_at_the_end_and_two_backwards():
    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            first = LOSS(model(x), y)
            first.backward()
            second = 0.1 * model(2 * x).square().mean()
            second.backward()
            moves.step()
            moves.zero_grad()
            return first.detach() + second.detach()

        return step, model, moves

    compare(make)


def test_the_update_may_be_elsewhere():
    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)
        calls = []

        def step(x, y):
            loss = LOSS(model(x), y)
            loss.backward()
            return loss.item()

        def outer(inner):
            def run(x, y):
                value = inner(x, y)
                calls.append(value)
                if len(calls) % 2 == 0:  # gradients of two batches
                    moves.step()
                    moves.zero_grad()
                return value

            return run

        step.outer = outer
        return step, model, moves

    def decorated(decorate):
        return lambda step: step.outer(decorate(step))

    plain = train(make, decorated(lambda step: step))
    sliced = train(make, decorated(legroom.step(slice_size=5)))
    for one, other in zip(numbers(plain[0]), numbers(sliced[0]), strict=True):
        assert np.abs(one - other).max(initial=0) <= 1e-5


def one_optimizer_twice():
    """The second update reads gradients that the code behind the first one has scaled."""
    model = net()
    moves = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y):
        moves.zero_grad()
        LOSS(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        moves.step()
        loss = LOSS(model(-x), y)
        loss.backward()
        moves.step()
        return loss.item()

    return step, model, moves


def by_hand():
    model = net()

    def step(x, y):
        for p in model.parameters():
            p.grad = None
        loss = LOSS(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
        return loss.item()

    return step, model


def by_closure():
    model = net()
    moves = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def step(x, y):
        def closure():
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            return loss

        return float(moves.step(closure))

    return step, model


def counting():
    model = net()
    moves = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = {"batches": 0}

    def step(x, y):
        seen["batches"] += 1
        loss = LOSS(model(x), y) / seen["batches"]
        moves.zero_grad()
        loss.backward()
        moves.step()
        return loss.item()

    return step, model, moves


def taking():
    model = net()
    moves = torch.optim.SGD(model.parameters(), lr=0.05)
    others = iter([torch.full((12,), i / 10) for i in range(20)])

    def step(x, y):
        moves.zero_grad()
        loss = LOSS(model(x + next(others)), y)
        loss.backward()
        moves.step()
        return loss.item()

    return step, model, moves


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (one_optimizer_twice, "it updates its weights several times for one batch"),
        (by_hand, "it updates its weights without an optimizer"),
        (by_closure, "closure"),
        (counting, "it changes seen"),
        (taking, "it takes from others"),
    ],
)
def test_what_can_not_be_sliced_runs_whole_with_a_sentence(case, why):
    compare(case, refused=why)


def contrastive(z, y):
    z = functional.normalize(z, dim=1)
    return LOSS(z @ z.T, torch.arange(len(z)) % len(z))


@pytest.mark.parametrize(
    ("case", "named"),
    [
        (ordinary(norm=True), "1 (BatchNorm1d)"),
        (ordinary(loss=contrastive), "the loss of the step"),
    ],
)
def test_what_mixes_the_samples_of_a_batch_is_named(case, named):
    compare(case, changes=named)


def test_a_step_that_trains_nothing_yet_keeps_its_results():
    """What the step returns for each sample is the last slice's, and that is said."""
    model = net()
    moves = torch.optim.SGD(model.parameters(), lr=0.0)

    @legroom.step(slice_size=5)
    def step(x, y):
        moves.zero_grad()
        scores = model(x)
        loss = LOSS(scores, y)
        loss.backward()
        moves.step()
        return loss.detach(), scores.detach()

    notes = []
    with listening(lambda event: event.name == "note" and notes.append(event.text)):
        x, y = BATCHES[0]
        loss, scores = step(x, y)
    assert torch.allclose(loss, LOSS(model(x), y))
    assert len(scores) == 4
    assert ["of the last slice only" in note for note in notes] == [True]


def test_a_step_is_as_it_was_without_legroom():
    def step(x, y):
        return x.sum() + y.sum()

    guarded = legroom.step(step)
    legroom.uninstall()
    x, y = BATCHES[0]
    assert torch.equal(guarded(x, y), step(x, y))
