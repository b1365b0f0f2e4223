"""What people put into their steps beside a forward and a backward pass, in plain PyTorch."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import legroom  # noqa: E402

from .torch_steps import BATCHES, LOSS, compare, net  # noqa: E402

pytestmark = pytest.mark.on_torch("needs no Keras")


def with_step(around, **parts):
    """A step with code before its forward pass, between that and backward, and at its end."""

    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        before, middle, after, *others = around(model, moves)

        def step(x, y):
            before(x)
            moves.zero_grad()
            scores = model(x)
            loss = LOSS(scores, y) + middle(scores)
            loss.backward()
            moves.step()
            after()
            return loss.item()

        return step, model, moves, *others

    return make


def nothing(*given):
    return 0.0


def average_by_hand(model, moves):
    other = copy.deepcopy(model).requires_grad_(False)

    def after():
        for one, mine in zip(other.parameters(), model.parameters(), strict=True):
            one.mul_(0.9).add_(mine.detach(), alpha=0.1)

    return nothing, nothing, after, other


def average_that_may_train(model, moves):
    other = copy.deepcopy(model)

    @torch.no_grad()
    def after():
        for one, mine in zip(other.parameters(), model.parameters(), strict=True):
            one.lerp_(mine, 0.1)

    return nothing, nothing, after, other


def average_of_pytorch(model, moves):
    other = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    return nothing, nothing, lambda: other.update_parameters(model), other


def weights_cut_at_the_end(model, moves):
    def after():
        for weight in model.parameters():
            weight.data.clamp_(-0.3, 0.3)

    return nothing, nothing, after


def scores_to_look_at(model, moves):
    kept = {"scores": None}

    def middle(scores):
        kept["scores"] = scores.detach()
        return 0.0

    return nothing, middle, nothing


@pytest.mark.parametrize(
    "around",
    [average_by_hand, average_that_may_train, average_of_pytorch, weights_cut_at_the_end,
     scores_to_look_at],
)  # fmt: skip
def test_what_is_done_once_for_a_batch(around):
    compare(with_step(around))


def slow_twin_before(model, moves):
    """As of MoCo: the twin follows before each forward pass."""
    twin = copy.deepcopy(model).requires_grad_(False)

    def before(x):
        for one, mine in zip(twin.parameters(), model.parameters(), strict=True):
            one.mul_(0.9).add_(mine.detach(), alpha=0.1)

    return before, lambda scores: twin(torch.ones(1, 12)).mean(), nothing, twin


def weights_moved_and_back(model, moves):
    """As of SAM: gradients are taken elsewhere."""

    def before(x):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.01)

    return before, nothing, nothing


def center(model, moves):
    """As of DINO: an average of the scores, which the next batch uses."""
    kept = {"center": torch.zeros(5)}

    def middle(scores):
        kept["center"] = 0.5 * kept["center"] + 0.5 * scores.detach().mean(0)
        return (scores * kept["center"]).mean()

    return nothing, middle, nothing


def center_in_place(model, moves):
    kept = torch.zeros(5)

    def middle(scores):
        kept.mul_(0.5).add_(scores.detach().mean(0))
        return (scores * kept).mean()

    return nothing, middle, nothing


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (slow_twin_before, "it updates its weights without an optimizer"),
        (weights_moved_and_back, "it updates its weights without an optimizer"),
        (center, "before backward(), which each slice would change again"),
        (center_in_place, "before backward(), which each slice would change again"),
    ],
)
def test_what_each_slice_would_do_again_runs_whole(around, why):
    compare(with_step(around), refused=why)


def remembering(begun):
    """A recurrent net whose state goes from batch to batch."""

    def make():
        torch.manual_seed(0)
        cell, head = nn.GRUCell(12, 8), nn.Linear(8, 5)
        moves = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
        kept = {"state": torch.ones(16, 8) if begun else None}

        def step(x, y):
            state = kept["state"]
            state = cell(x, None if state is None else state[: len(x)])
            kept["state"] = state.detach()
            moves.zero_grad()
            loss = LOSS(head(state), y)
            loss.backward()
            moves.step()
            if len(x) < 16:
                kept["state"] = None  # the end of an epoch
            return loss.item()

        return step, cell, head, moves

    return make


@pytest.mark.parametrize("begun", [False, True])
def test_a_state_that_goes_from_batch_to_batch(begun):
    compare(remembering(begun), refused="before backward(), which each slice would change again")


def test_sparse_gradients():
    def make():
        torch.manual_seed(0)
        table, head = nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 5)
        moves = [
            torch.optim.SparseAdam(list(table.parameters()), lr=0.01, eps=1e-3),
            torch.optim.Adam(head.parameters(), lr=0.01, eps=1e-3),
        ]

        def step(x, y):
            for one in moves:
                one.zero_grad()
            loss = LOSS(head(table((x.abs() * 20).long().clamp(0, 49))), y)
            loss.backward()
            for one in moves:
                one.step()
            return loss.item()

        return step, table, head, *moves

    compare(make)


def test_an_optimizer_for_each_weight_that_moves_within_backward():
    def make():
        model = net()
        moves = {p: torch.optim.Adam([p], lr=0.01, eps=1e-3) for p in model.parameters()}

        def move(weight):
            moves[weight].step()
            moves[weight].zero_grad()

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(move)

        def step(x, y):
            loss = LOSS(model(x), y)
            loss.backward()
            return loss.item()

        return step, model, *moves.values()

    compare(make, refused="a hook on its weights")


def test_gradients_that_a_hook_cuts_are_named():
    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)
        for weight in model.parameters():
            weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))

        def step(x, y):
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, moves

    compare(make, changes="a hook on the gradients")


@pytest.mark.parametrize(
    ("most", "found"),
    [(1, {"refused": "means or sums can't be told"}), (2, {"changes": "the loss of the step"}),
     (3, {"changes": "the loss of the step"})],
)  # fmt: skip
def test_a_mean_over_what_counts_is_never_taken_for_a_sum(most, found):
    """Of some of the samples that it is tried on nothing counts."""

    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            mask = (y < most).float()
            moves.zero_grad()
            loss = (LOSS(model(x), y, reduction="none") * mask).sum() / (mask.sum() + 1e-8)
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, moves

    compare(make, **found)


class Centered(nn.Module):
    """Puts another tensor in the place of its buffer, and counts in Python."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(5))
        self.calls = 0

    def forward(self, scores):
        self.calls += 1
        self.center = 0.5 * self.center + 0.5 * scores.detach().mean(0)
        return (scores - self.center).square().mean()


def test_a_buffer_in_whose_place_another_is_put():
    def make():
        model, centered = net(), Centered()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            moves.zero_grad()
            loss = centered(model(x))
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, centered, moves

    compare(make, refused="centered.calls before backward()")


def test_such_a_buffer_is_put_back_when_a_step_fails():
    model, centered = net(), Centered()
    moves = torch.optim.SGD(model.parameters(), lr=0.05)

    @legroom.step
    def step(x, fails):
        moves.zero_grad()
        loss = centered(model(x))
        if fails:
            raise KeyError
        loss.backward()
        moves.step()

    for _ in range(3):
        step(BATCHES[0][0], False)
        before = centered.center.clone()
        with pytest.raises(KeyError):
            step(BATCHES[1][0], True)
        assert torch.equal(centered.center, before)


def test_a_failure_of_legroom_behind_an_update_does_not_make_it_twice(monkeypatch):
    from legroom.backends.torch.step.undo import Undo

    weights = []
    for broken in (False, True):
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        @legroom.step
        def step(x, y, model=model, moves=moves):
            moves.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            moves.step()

        with monkeypatch.context() as patch:
            if broken:
                patch.delattr(Undo, "settle")
            for x, y in BATCHES:
                step(x, y)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


class Remembering(nn.Module):
    """As of quantizers: an average in a buffer, which the loss does not know of."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, scores):
        self.mean.mul_(0.9).add_(0.1 * scores.detach().mean(0))
        return scores


def test_buffers_that_slices_leave_with_other_values_are_named():
    def make():
        model = nn.Sequential(net(), Remembering())
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x, y):
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, moves

    compare(make, changes="1 (Remembering)")


def test_modules_that_are_not_seen_in_the_code():
    """What they keep is not left by the comparison."""

    def make():
        hidden = {"model": net(0.3, norm=True)}
        hidden["moves"] = torch.optim.SGD(hidden["model"].parameters(), lr=0.05)
        found = functools.cache(lambda name: hidden[name])
        [found(name) for name in hidden]
        held = (found,)
        del found

        def step(x, y):
            model, moves = (held[0](name) for name in ("model", "moves"))
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, *hidden.values()

    compare(make, refused="1 (BatchNorm1d) mixes", exact=True)


def test_slices_of_one_sample_for_batch_norm_have_two():
    seen = []

    @legroom.step(slice_size=1)
    def step(x, y):
        moves.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        moves.step()

    model = net(norm=True)
    model.register_forward_hook(lambda module, given, made: seen.append(len(made)))
    moves = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in BATCHES:
        seen.clear()
        step(x[:7], y[:7])
    assert seen == [2, 2, 3]


def test_steps_in_time_are_not_taken_for_samples():
    def make():
        torch.manual_seed(0)
        parts = nn.ModuleList([nn.LSTM(12, 8), nn.Linear(8, 5)])
        moves = torch.optim.SGD(parts.parameters(), lr=0.05)

        def step(x, y):
            moves.zero_grad()
            loss = LOSS(parts[1](parts[0](x)[0]).flatten(0, 1), y.flatten())
            loss.backward()
            moves.step()
            return loss.item()

        return step, parts, moves

    batches = [(x[:, None] * torch.ones(3, 1), y[:, None].expand(-1, 3)) for x, y in BATCHES]
    compare(make, refused="0 (LSTM) has batch_first=False", batches=batches)
