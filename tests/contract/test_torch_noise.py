"""Random numbers in plain PyTorch: on a CPU slices draw what the whole batch would draw."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from legroom.backends.torch.slices import noise  # noqa: E402

from .torch_steps import LOSS, compare, ordinary  # noqa: E402

pytestmark = pytest.mark.on_torch("needs no Keras")


def layers(make_layers, run):
    """A step of some layers, and how they are run."""

    def make():
        torch.manual_seed(0)
        parts = nn.ModuleList(make_layers())
        moves = torch.optim.SGD(parts.parameters(), lr=0.05)

        def step(x, y):
            moves.zero_grad()
            loss = LOSS(run(parts, x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, parts, moves

    return make


def sentences(x):
    return x[:, None] * torch.linspace(0.5, 1.0, 6)[:, None]


def attention():
    return [nn.TransformerEncoderLayer(12, 2, 16, dropout=0.2, batch_first=True), nn.Linear(12, 5)]


def recurrent():
    return [nn.LSTM(12, 8, 2, dropout=0.4, batch_first=True), nn.Linear(8, 5)]


def dense():
    return [nn.Linear(12, 16), nn.Dropout(0.3), nn.Linear(16, 5)]


OWN = torch.Generator()


def own_generator(parts, x):
    return parts[2](parts[0](x + torch.randn(len(x), 12, generator=OWN)))


def diffusion(parts, x):
    """A time and noise for each sample."""
    times = torch.randint(0, 50, (len(x),))
    return parts[2](parts[0](x + times[:, None] / 50 * torch.randn_like(x)))


def sampled(parts, x):
    means = parts[0](x)
    return parts[2](means + torch.normal(means.detach(), means.detach().exp()))


def chosen(parts, x):
    return parts[2](functional.gumbel_softmax(parts[0](x)))


def along_another_axis(parts, x):
    inner = parts[1](parts[0](sentences(x)).transpose(0, 1))  # steps in time come first
    return parts[2](parts[1](inner).mean(0))


@pytest.mark.parametrize(
    ("made", "run"),
    [
        (attention, lambda parts, x: parts[1](parts[0](sentences(x)).mean(1))),
        (recurrent, lambda parts, x: parts[1](parts[0](sentences(x))[0][:, -1])),
        (dense, along_another_axis),
        (dense, diffusion),
        (dense, sampled),
        (dense, chosen),
        (dense, own_generator),
    ],
    ids=["attention", "recurrent", "axis", "diffusion", "normal", "gumbel", "own generator"],
)
def test_the_rows_of_the_whole_batch(made, run):
    def make():
        OWN.manual_seed(0)
        return layers(made, run)()

    compare(make)


def test_dropout_where_it_is_not_drawn_number_after_number(monkeypatch):
    """On processors of Intel's."""
    monkeypatch.setattr(noise, "_is_in_order", lambda op: False)
    compare(ordinary(dropout=0.4))
