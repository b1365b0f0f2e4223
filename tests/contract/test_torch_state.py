"""What a training on PyTorch is, to a file and back; and its place in its data."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest

pytestmark = pytest.mark.on_torch("is about PyTorch's own objects")
torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset  # noqa: E402

from legroom.backends.torch.input.passage import Passage, begin  # noqa: E402
from legroom.backends.torch.state import training_state as state  # noqa: E402
from legroom.backends.torch.state.arrays import as_array, as_tensor  # noqa: E402
from legroom.backends.torch.state.state_dicts import as_plain, from_plain  # noqa: E402
from legroom.snapshots.fingerprint import data_fingerprint  # noqa: E402
from legroom.snapshots.format import read_file, write_file  # noqa: E402
from legroom.snapshots.values import decode, encode  # noqa: E402


def through_a_file(value, tmp_path):
    """What another process would read."""
    arrays = []
    write_file(tmp_path / "file", {"value": encode(value, arrays)}, arrays)
    content = read_file(tmp_path / "file")
    return decode(content.values["value"], content.arrays)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64,
          torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
          torch.float8_e5m2]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type_come_back_bit_for_bit(dtype, tmp_path):
    bits = torch.arange(64, dtype=torch.uint8) % 2 if dtype == torch.bool else torch.randint(
        0, 256, (256,), dtype=torch.uint8)  # fmt: skip
    for tensor in (bits.view(dtype), bits.view(dtype)[::2], bits.view(dtype)[0]):
        back = as_tensor(through_a_file(as_array(tensor), tmp_path))
        assert back.dtype == dtype
        assert back.shape == tensor.shape
        raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (back, tensor)]
        assert torch.equal(*raw)


def test_containers_of_a_state_dict_come_back_as_they_were(tmp_path):
    value = {
        1: collections.OrderedDict(a=(1, 2.5, None), b=[True, b"x"]),
        "counts": collections.Counter({30: 1}),
        "types": [torch.float16, torch.device("cpu")],
        (1, 2): {3, 4},
        "is": ["tensor", "list"],
    }
    back = from_plain(through_a_file(as_plain(value), tmp_path))
    assert back == value
    assert type(back[1]) is collections.OrderedDict
    assert type(back["counts"]) is collections.Counter


def test_what_is_no_plain_value_is_refused():
    with pytest.raises(TypeError, match="function is no plain value"):
        as_plain({"f": lambda: None})
    with pytest.raises(TypeError, match="no plain array"):
        as_plain(torch.eye(3).to_sparse())


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=2),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}
SCHEDULERS = {
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "cosine": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "in turn": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


class Loop:
    """A loop of a few lines."""

    def __init__(self, optimizer, scheduler, dtype=torch.float32):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.5),
            torch.nn.Linear(5, 1),
        ).to(dtype)  # fmt: skip
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        self.x = torch.rand(8, 4).to(dtype)

    def parts(self):
        return [self.model, self.optimizer, self.scheduler, self.scaler]

    def train(self, steps):
        for _ in range(steps):

            def closure():
                self.optimizer.zero_grad()
                loss = self.model(self.x).square().mean()
                loss.backward()
                return loss

            if isinstance(self.optimizer, torch.optim.LBFGS):
                loss = self.optimizer.step(closure)
            else:
                loss = self.scaler.scale(self.model(self.x).square().mean())
                loss.backward()  # gradients are never cleared: they are part of the training
                self.scaler.step(self.optimizer)
                self.scaler.update()
            if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(loss.item())
            else:
                self.scheduler.step()

    def result(self):
        gradients = [p.grad for p in self.model.parameters()]
        return [*self.model.state_dict().values(), *gradients, torch.rand(2),
                torch.tensor([group["lr"] for group in self.optimizer.param_groups]),
                torch.tensor(self.scaler.get_scale())]  # fmt: skip


CASES = [*((o, "steps") for o in OPTIMIZERS), *(("sgd", s) for s in SCHEDULERS if s != "steps")]


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_another_process_continues_bit_for_bit(optimizer, scheduler, tmp_path):
    one = Loop(optimizer, scheduler)
    one.train(4)
    arrays = []
    seeds = state.seeds(arrays)
    kept = through_a_file([state.take(part) for part in one.parts()], tmp_path)
    one.train(6)
    expected = one.result()
    other = Loop(optimizer, scheduler)
    torch.rand(5)
    for part, taken in zip(other.parts(), kept, strict=True):
        state.put(part, taken)
    state.set_seeds(seeds, arrays)
    other.train(6)
    for a, b in zip(expected, other.result(), strict=True):
        assert torch.equal(a, b)


def test_slots_keep_a_type_of_their_own(tmp_path):
    """PyTorch would turn them into the weight's: less than they were."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.tensor([0.1, 0.2, 0.3])
    kept = through_a_file(state.take(optimizer), tmp_path)
    optimizer.state[weight]["momentum_buffer"] = torch.zeros(3)
    state.put(optimizer, kept)
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.tensor([0.1, 0.2, 0.3]))


# The place in data.

DATA = TensorDataset(torch.arange(60.0))


class Stream(IterableDataset):
    def __iter__(self):
        for number in np.random.permutation(60):
            yield torch.tensor(number + random.random())


class Counting(Sampler):
    def __init__(self):
        self.passes = 0
        self.draws = np.random.default_rng(1)

    def __len__(self):
        return 60

    def __iter__(self):
        self.passes += 1
        return iter((self.draws.permutation(60) + self.passes) % 60)


class Augmented(TensorDataset):
    def __init__(self):
        super().__init__(torch.arange(60.0))
        self.own = random.Random(4)
        self.asked = 0

    def __getitem__(self, index):
        self.asked += 1
        return self.tensors[0][index] + torch.rand(()) + self.own.random() + self.asked


class Stateful:
    """A loader that tells its own place."""

    def __init__(self):
        self.place = 0
        self.read = []

    def __iter__(self):
        while self.place < 15:
            self.place += 1
            self.read.append(self.place)
            yield torch.tensor([self.place])
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, kept):
        self.place = kept["place"]


LOADERS = {
    "shared generator": lambda: DataLoader(DATA, 4, shuffle=True),
    "own generator": lambda: DataLoader(
        DATA, 4, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "workers": lambda: DataLoader(Augmented(), 4, shuffle=True, num_workers=2),
    "augmented": lambda: DataLoader(Augmented(), 4, shuffle=True),
    "stream": lambda: DataLoader(Stream(), 4),
    "sampler": lambda: DataLoader(DATA, 4, sampler=Counting()),
    "with replacement": lambda: DataLoader(
        DATA, 4, sampler=torch.utils.data.WeightedRandomSampler(torch.ones(60), 60)
    ),
    "stateful": Stateful,
    "generator": lambda: (torch.rand(2) for _ in range(15)),
}


def seed(number):
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def same(one, other):
    for a, b in zip(one, other, strict=True):
        a, b = (x[0] if isinstance(x, (list, tuple)) else x for x in (a, b))
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LOADERS)
def test_another_process_finds_the_place(name, tmp_path):
    seed(1)
    loader = LOADERS[name]()
    if name != "generator":
        list(Passage(loader))  # a pass that is over
    passage = begin(loader, None, 0)
    for _ in range(6):
        next(passage)
        torch.rand(3), np.random.random()  # what the step draws
    arrays = []
    seeds, own = state.seeds(arrays), (random.getstate(), np.random.get_state())
    place = through_a_file(passage.place(), tmp_path)
    rest = list(passage)
    later = [] if name == "generator" else list(Passage(loader))

    seed(2)
    again = LOADERS[name]()
    passage = begin(again, place, 6)
    random.setstate(own[0])
    np.random.set_state(own[1])
    state.set_seeds(seeds, arrays)
    assert len(rest) == 9
    same(rest, list(passage))
    same(later, [] if name == "generator" else list(Passage(again)))
    if name == "stateful":
        assert len(again.read) == 9 + 15  # none was passed over by reading it


def test_batches_of_arrays_are_passed_over_without_being_made():
    made = []

    class Slow(TensorDataset):
        def __getitem__(self, index):
            made.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Slow(torch.arange(60.0)), 4, shuffle=True)
    passage = begin(loader, Passage(loader).place(), 10)
    next(passage)
    assert len(made) == 4


def test_large_attributes_are_the_data_and_are_not_kept():
    dataset = TensorDataset(torch.zeros(10))
    dataset.table = np.zeros((300, 300))
    dataset.order = np.arange(100)
    loader = DataLoader(dataset, 4)
    place = Passage(loader).place()
    kept = dict(place["created"]["remembered"])
    assert any(path.endswith(".order") for path in kept)
    assert not any(path.endswith(".table") for path in kept)


def test_other_data_in_a_loader_is_another_training():
    def loader(values, **how):
        return data_fingerprint(DataLoader(TensorDataset(values), 4, **how))

    values = torch.arange(8.0)
    assert loader(values) == loader(values.clone())
    assert loader(values) != loader(values + 1)
    assert loader(values) != loader(values, shuffle=True)
    assert loader(values) != loader(values, num_workers=1)
    halves = values.bfloat16()
    assert loader(halves) == loader(halves.clone())
    assert loader(halves) != loader(halves + 1)


# Keras's models.


def test_layers_of_pytorch_in_a_keras_model_are_kept_and_undone():
    import keras

    from legroom.backends.torch.step.participants import KerasModel
    from legroom.backends.torch.step.step import Step

    norm = torch.nn.BatchNorm1d(4)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.TorchModuleWrapper(norm), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    groups = collections.Counter(group for group, _ in state.training_variables(model))
    assert groups["module"] == 3  # mean, variance, and the number of batches

    def fails(data):
        model(data, training=True)
        raise KeyboardInterrupt

    before = norm.running_mean.clone()
    with pytest.raises(KeyboardInterrupt):
        Step(fails, fails, KerasModel(model)).run(torch.rand(6, 4) + 5, None)
    assert torch.equal(norm.running_mean, before)
    assert int(norm.num_batches_tracked) == 0


def test_guarding_draws_no_random_numbers_of_the_script():
    import keras

    import legroom

    def draws(guarded):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((8, 4), "float32")
        (legroom.fit(model, x, x[:, :1], verbose=0) if guarded
         else model.fit(x, x[:, :1], verbose=0))  # fmt: skip
        return random.random(), np.random.random(), torch.rand(()).item()

    assert draws(True) == draws(False)
