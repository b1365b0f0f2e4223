"""PyTorch on a card that is really there: caps, errors, slices and steps that fail.

KERAS_BACKEND=torch python -m pytest tests/gpu
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use"),
]

import legroom  # noqa: E402
from legroom.core.events import listening  # noqa: E402

GIB = 2**30


@pytest.fixture(autouse=True)
def _uncapped():
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def build(dropout=0.0, norm=False, optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), *([torch.nn.BatchNorm2d(64)] if norm else []),
        torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Conv2d(64, 64, 3, padding=1),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    moves = optimizer(model.parameters(), lr=0.01, **options)

    def step(x, y):
        moves.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        moves.step()
        return loss.item()

    return model, moves, step


def batches(count=3, samples=256):
    source = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(samples, 3, 128, 128, generator=source).cuda()
        yield x, torch.randint(0, 10, (samples,), generator=source).cuda()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_loop_in_a_capped_card_trains_as_in_the_whole_one(optimizer):
    weights, events = [], []
    for capped in (False, True):
        model, moves, step = build(optimizer=optimizer, **({"eps": 1e-3} if optimizer is
                                                          torch.optim.AdamW else {}))  # fmt: skip
        if capped:
            legroom.limit(3 * GIB)
            step = legroom.step(step)
        with listening(events.append):
            for x, y in batches():
                step(x, y)
        weights.append([p.detach().cpu().numpy() for p in model.parameters()])
        del model, moves, step
        gc.collect()
    assert [e for e in events if e.name == "oom"]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_plain_runs_out_there():
    _, _, step = build()
    legroom.limit(3 * GIB)
    ((x, y),) = batches(1)
    with pytest.raises(torch.OutOfMemoryError):
        step(x, y)


def test_layers_that_draw_are_named():
    _, _, step = build(dropout=0.5)
    notes = []
    with listening(lambda event: event.name == "note" and notes.append(event.text)):
        for x, y in batches(1, 16):
            legroom.step(slice_size=5)(step)(x, y)
    assert len(notes) == 1
    assert "Dropout" in notes[0]


def test_a_step_that_fails_has_done_nothing_wherever_it_fails():
    from legroom.backends.base import named
    from legroom.backends.torch.step.functions import GuardedFunction

    model, moves, step = build(norm=True, optimizer=torch.optim.Adam)
    run = GuardedFunction(step, lambda made: lambda data: made.run(data, None))
    ((x, y),) = batches(1, 64)

    def state():
        slots = [v for kept in moves.state.values() for v in kept.values()]
        return [t.detach().clone() for t in [*model.state_dict().values(), *slots]]

    def same(one, other):
        return len(one) == len(other) and all(map(torch.equal, one, other))

    run(x, y)
    device = named("torch").device
    device.set_limit(4 * GIB)
    seen = {"done": 0, "undone": 0}
    for level in range(20):
        gc.collect()
        torch.cuda.empty_cache()
        free = 4 * GIB - torch.cuda.memory_reserved()
        try:
            ballast = torch.empty(free * (level + 1) // 21, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            continue
        before = state()
        try:
            run(x, y)
            seen["done"] += 1
        except torch.OutOfMemoryError:
            assert same(before, state()), level
            seen["undone"] += 1
        del ballast
    assert seen["undone"] >= 2, seen
    assert seen["done"] >= 2, seen


def test_a_model_of_keras_in_a_capped_card():
    keras = pytest.importorskip("keras")
    x = np.random.default_rng(0).normal(size=(256, 128, 128, 3)).astype("float32")
    y = x.mean(axis=(1, 2, 3))[:, None]
    weights, reports = [], []
    for capped in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((128, 128, 3)), *[keras.layers.Conv2D(64, 3, activation="relu")] * 1,
             keras.layers.Conv2D(64, 3, activation="relu"), keras.layers.GlobalAveragePooling2D(),
             keras.layers.Dense(1)]
        )  # fmt: skip
        model.compile(keras.optimizers.SGD(0.01), "mse")
        if capped:
            legroom.limit(3 * GIB)
            fit = legroom.fit(model, x, y, batch_size=256, epochs=2, verbose=0, shuffle=False)
            reports.append(fit.legroom)
        else:
            model.fit(x, y, batch_size=256, epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
        del model
        gc.collect()
    assert reports[0].ooms
    assert reports[0].samples_lost == 0
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
