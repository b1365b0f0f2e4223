"""What people call their steps with, in plain PyTorch: only data is cut, and all else is theirs."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
import weakref
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import legroom  # noqa: E402
from legroom.core.events import listening  # noqa: E402

from .torch_steps import BATCHES, LOSS, compare, net  # noqa: E402

pytestmark = pytest.mark.on_torch("needs no Keras")


@dataclasses.dataclass
class Columns:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "train"


class Row(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
    weight: object = None


def taking(read):
    """A step that finds its batch among its arguments."""

    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(*args, **kwargs):
            x, y = read(*args, **kwargs)
            moves.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, model, moves

    return make


def attributes(batch):
    return batch.x, batch.y


class Fresh:
    """The batches, made anew each time: a step may take them apart."""

    def __init__(self, call):
        self._call = call

    def __iter__(self):
        return iter([(self._call(x, y),) for x, y in BATCHES])


def names_of(n):
    return [f"picture {i}" for i in range(n)]


def picture(x, i):
    return x[: 3 + i % 3, None] * torch.ones(4)  # of another size for each sample


def of_pictures(pictures, targets):
    return (
        torch.stack([p.sum((0, 1)) * torch.ones(12) for p in pictures]),
        torch.stack([t["label"] for t in targets]),
    )


@pytest.mark.parametrize(
    ("read", "call"),
    [
        (attributes, lambda x, y: Columns(x, y)),
        (attributes, lambda x, y: Row(x, y)),
        (lambda batch: (batch["x"], batch["y"]), lambda x, y: collections.UserDict(x=x, y=y)),
        (lambda batch: (batch.pop("x"), batch.pop("y")), lambda x, y: {"x": x, "y": y}),
        (lambda batch: (batch[0], batch[1]), lambda x, y: [x, y, names_of(len(x))]),
        (lambda batch: (torch.stack(batch[0]), batch[1]), lambda x, y: [list(x), y]),
    ],
    ids=["dataclass", "named tuple", "user dict", "popped", "names", "a list of samples"],
)  # fmt: skip
def test_one_argument_that_holds_the_batch(read, call):
    compare(taking(read), batches=Fresh(call))


def test_popped_out_of_a_dict_that_runs_out():
    """The second try finds again what the first one has taken."""
    seen = []

    @legroom.step
    def step(batch, log):
        x, y = batch.pop("x"), batch.pop("y")
        if len(x) > 8:
            torch.empty(2**60)  # which no machine has
        moves.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        moves.step()
        log.append(loss.item())
        seen.append(len(x))

    model, log = net(), []
    moves = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in BATCHES[:2]:
        step({"x": x, "y": y}, log)
    assert len(log) == 2
    assert set(seen) <= {8, 4, 3, 1}


def test_what_a_step_counted_before_it_ran_out_is_counted_once():
    """Between backward and the update, say, where slots are born."""
    model, seen = net(), {"updates": 0}
    moves = torch.optim.SGD(model.parameters(), lr=0.05)

    @legroom.step
    def step(x, y):
        moves.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        seen["updates"] += 1
        if len(x) > 8:
            torch.empty(2**60)  # which no machine has
        moves.step()
        seen["rows"] = len(x)

    for number, (x, y) in enumerate(BATCHES, 1):
        step(x, y)
        assert seen["updates"] == number
        assert seen["rows"] <= 8


def test_entries_of_a_list_for_each_sample():
    def make():
        torch.manual_seed(0)
        cell, head = nn.GRU(12, 8, batch_first=True), nn.Linear(8, 5)
        moves = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)

        def step(x, lengths, y, device="cpu"):
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            moves.zero_grad()
            loss = LOSS(head(cell(packed)[1][-1]), y)
            loss.backward()
            moves.step()
            return loss.item()

        return step, cell, head, moves

    batches = [
        (x[:, None] * torch.ones(7, 1), [1 + i % 7 for i in range(len(x))], y) for x, y in BATCHES
    ]
    compare(make, batches=batches)


def test_pictures_of_different_sizes_and_a_dict_for_each():
    compare(
        taking(of_pictures),
        batches=[
            (
                [picture(a, i) for i, a in enumerate(x)],
                [{"label": b, "id": i} for i, b in enumerate(y)],
            )
            for x, y in BATCHES
        ],
    )


def test_weights_of_classes_come_first():
    weights = torch.linspace(0.5, 2.0, 5)
    compare(
        taking(lambda weights, x, y: (x * weights.sum(), y)),
        batches=[(weights, x, y) for x, y in BATCHES],
    )


class Trainer:
    """As people write them: a step is a method, and counts."""

    def __init__(self, kind):
        self.model = net()
        self.moves = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.kind, self.calls, self.losses = kind, 0, []
        if kind == "taking":
            self.noise = iter([torch.full((12,), i / 10) for i in range(50)])

    def step(self, x, y):
        if self.kind == "before":
            self.calls += 1
        if self.kind == "taking":
            x = x + next(self.noise)
        self.moves.zero_grad()
        loss = LOSS(self.model(x), y) / (1 + (self.calls if self.kind == "before" else 0))
        loss.backward()
        self.moves.step()
        self.calls += self.kind == "behind"
        self.losses.append(loss.item())
        return 100 * self.calls + loss.item()


@pytest.mark.parametrize(
    ("kind", "found"),
    [("behind", {}), ("before", {"refused": "it changes self.calls before backward()"}),
     ("taking", {"refused": "it takes from self.noise"})],
)  # fmt: skip
def test_a_method_that_counts(kind, found):
    def trained(options):
        class Guarded(Trainer):
            step = Trainer.step if options is None else legroom.step(**options)(Trainer.step)

        trainer, notes = Guarded(kind), []
        with listening(lambda event: event.name == "note" and notes.append(event.text)):
            for x, y in BATCHES:
                trainer.step(x, y)
        return trainer, notes

    plain, _ = trained(None)
    for options in ({}, {"slice_size": 5}):
        trainer, notes = trained(options)
        assert trainer.calls == plain.calls
        assert trainer.losses == pytest.approx(plain.losses, rel=1e-5)
        pairs = zip(plain.model.parameters(), trainer.model.parameters(), strict=True)
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
    assert [found["refused"] in note for note in notes] == [True] if found else not notes


def counting(before):
    """A step that is handed what it counts in."""

    def make():
        model = net()
        moves = torch.optim.SGD(model.parameters(), lr=0.05)
        seen = {"calls": 0, "losses": []}

        def step(x, y):
            return counted(x, y, seen)

        def counted(x, y, seen):
            seen["calls"] += before
            moves.zero_grad()
            loss = LOSS(model(x), y) / (1 + before * seen["calls"])
            loss.backward()
            moves.step()
            seen["losses"].append(loss.item())
            return loss.item() + 10 * len(seen["losses"])

        step.counted, step.seen = counted, seen
        return step, model, moves

    def decorated(decorate):
        def decorate_inner(step):
            inner = decorate(step.counted)
            return lambda x, y: inner(x, y, step.seen)

        return decorate_inner

    return make, decorated


@pytest.mark.parametrize("before", [False, True])
def test_a_dict_that_the_step_counts_in(before):
    from .torch_steps import numbers, train

    make, decorated = counting(before)
    plain = train(make, decorated(lambda step: step))
    notes = []
    with listening(lambda event: event.name == "note" and notes.append(event.text)):
        sliced = train(make, decorated(legroom.step(slice_size=5)))
    assert plain[1] == pytest.approx(sliced[1], rel=1e-5)
    for one, other in zip(numbers(plain[0]), numbers(sliced[0]), strict=True):
        assert abs(one - other).max(initial=0) <= 1e-5
    assert ["it changes seen before backward()" in note for note in notes] == [True] * before


def test_what_is_learned_is_kept_where_only_words_change():
    """Names of files are no reason to find out again how a step is sliced."""
    model, calls = net(), []
    model.register_forward_hook(lambda module, given, made: calls.append(len(made)))
    moves = torch.optim.SGD(model.parameters(), lr=0.05)

    @legroom.step(slice_size=5)
    def step(x, y, name):
        moves.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        moves.step()

    x, y = BATCHES[0]
    for number in range(30):
        step(x, y, f"picture {number}")
        if number == 20:
            calls.clear()
    assert calls == [4] * 4 * 9  # no samples are tried any more


def test_trainings_that_are_over_are_let_go():
    class Guarded(Trainer):
        step = legroom.step(Trainer.step)

    for _ in range(2):
        trainer = Guarded("behind")
        trainer.step(*BATCHES[0])
        held = weakref.ref(trainer), weakref.ref(trainer.model)
        del trainer
        assert [one() for one in held] == [None, None]


@legroom.step
def step_of_this_file(x):
    return x


def test_a_step_is_copied_and_pickled_like_a_function():
    assert copy.deepcopy({"step": step_of_this_file})["step"] is step_of_this_file
    assert pickle.loads(pickle.dumps(step_of_this_file)) is step_of_this_file
