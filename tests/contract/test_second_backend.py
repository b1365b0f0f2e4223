"""The guard's whole policy on a backend that is not TensorFlow: the seam is real.

Every case runs once more in a process in which no framework can be imported.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from legroom.core.errors import CannotFitError
from legroom.core.events import listening
from legroom.guarding.options import GuardOptions, Start
from legroom.guarding.retrying.guarded_step import GuardedStep

from .numpy_backend import Counted, Pool, Step, behind_the_seam

pytestmark = pytest.mark.on_tensorflow("needs no framework: run with TensorFlow's")

RNG = np.random.default_rng(1)


def batch(samples=64, width=8):
    """A batch of data."""
    return RNG.random((samples, width)), RNG.random((samples, width))


def guarded(step, **options):
    """The guard around a step, which sees of it what the protocols name."""
    return GuardedStep(behind_the_seam(step), GuardOptions(**options))


def assert_trained(step, batches):
    """Its state is that of a training that nothing ever happened to."""
    plain = Step(Pool(), **step.net)
    for data in batches:
        plain.run(data, None)
    assert_same(step.state(), plain.state(), rtol=1e-9)


def assert_same(state, other, rtol=0.0):
    assert state.keys() == other.keys()
    for name, value in state.items():
        np.testing.assert_allclose(value, other[name], rtol=rtol, atol=rtol, err_msg=name)


@pytest.fixture
def events():
    """What was told while a test ran, but for the samples of memory that a thread tells."""
    told = []
    with listening(lambda event: event.name in ("memory", "machine") or told.append(event)):
        yield told


def in_need(share, *, samples=64, **net):
    """A step on a device that has room for its state and a share of what a whole batch takes."""
    step = Step(Pool(), **net)
    state = 2 * step.pool.own  # weights, and the velocity that is born in the first update
    step.pool.limit = state + int(share * Counted(step, samples)(samples))
    return step


def test_whole_batches(events):
    step, data = in_need(1.0), batch()
    guard = guarded(step)
    assert [guard(data) for _ in range(4)] == [1, 2, 3, 4]
    assert step.ran == [None] * 4
    assert_trained(step, [data] * 4)
    assert {event.name for event in events} == {"measured"}


def test_slices_after_running_out(events):
    step, data = in_need(0.4), batch()
    guard = guarded(step)
    for _ in range(4):
        guard(data)
    assert step.ran[0] is None
    assert step.ran[-1] < 64
    assert_trained(step, [data] * 4)
    ooms = [event for event in events if event.name == "oom"]
    assert len(ooms) == len(step.undone) >= 1
    assert "nothing lost" in ooms[-1].text


def test_slices_before_running_out_where_the_need_is_foreseen(events):
    step, data = in_need(0.4, foresees=True), batch()
    guard = guarded(step)
    for _ in range(4):
        guard(data)
    assert not step.undone
    assert step.ran[0] < 64
    assert_trained(step, [data] * 4)


def test_slices_grow_back(events):
    step, data = in_need(1.2), batch()
    guard = guarded(step)
    step.pool.others = step.pool.limit // 2
    for _ in range(3):
        guard(data)
    assert None not in step.ran[-2:]
    step.pool.others = 0
    for _ in range(5):
        guard(data)
    assert step.ran[-1] is None
    assert_trained(step, [data] * 8)


@pytest.mark.parametrize("updates", [0, 1])
@pytest.mark.parametrize(
    ("lean", "size"), [(False, None), (False, 24), (True, None)], ids=["whole", "slices", "lean"]
)
def test_whatever_allocation_fails_the_step_is_undone_and_repeated(updates, lean, size):
    batches = [batch(48) for _ in range(updates + 2)]
    failed = 0
    while True:
        step = Step(Pool(limit=10**6))
        for data in batches[:updates]:
            step.run(data, None)
        step.go_lean(lean)
        before = step.state()
        start = None if size is None else Start(48, size, peak_bytes=0)
        guard = guarded(step, start=start)
        step.pool.fails_at = step.pool.allocations + failed + 1
        guard(batches[updates])
        if not step.undone:
            break  # it has fewer allocations than that
        failed += 1
        assert len(step.undone) == 1
        assert_same(step.undone[0], before)
        guard(batches[-1])
        assert_trained(step, batches)
    assert failed >= 12


def test_lean_where_the_gradients_do_not_fit(events, monkeypatch):
    monkeypatch.setattr("legroom.guarding.retrying.guarded_step._PROGRESS_EVERY", 0.0)
    step, data = Step(Pool(), width=64), batch(4, 64)
    step.pool.limit = int(2.9 * step.pool.own)  # weights, what an update adds, and little else
    guard = guarded(step)
    for _ in range(3):
        guard(data)
    assert step.ran == ["lean"] * 3
    assert [event.data["reason"] for event in events if event.name == "plan"] == ["lean"]
    step.pool.limit *= 3
    guard.begin_call(None)  # which looks at the limit again
    for _ in range(3):
        guard(data)
    assert step.ran[-1] is None
    assert_trained(step, [data] * 6)


def test_a_slice_size_fixed_by_hand(events):
    step, data = in_need(0.4), batch()
    guard = guarded(step, slice_size=8)
    for _ in range(3):
        guard(data)
    assert step.ran == [8] * 3
    assert_trained(step, [data] * 3)
    before = step.state()
    step.pool.others = step.pool.limit - step.pool.own - 100
    with pytest.raises(CannotFitError, match="slice_size"):
        guard(data)
    assert step.ran == [8] * 4, "no other size is tried"
    assert_same(step.state(), before)


@pytest.mark.parametrize("foresees", [False, True])
def test_not_even_one_sample(events, foresees):
    step = Step(Pool(), foresees=foresees)
    step.pool.limit = step.pool.own + 100
    before = step.state()
    with pytest.raises(CannotFitError, match="one sample at a time") as caught:
        guarded(step)(batch())
    assert caught.value.budget_bytes == step.pool.limit
    assert (caught.value.needed_bytes is not None) == foresees
    assert "layer_0" in str(caught.value)
    assert 1 in step.ran
    assert_same(step.state(), before)


def test_what_slices_would_change_is_said(events):
    step, data = in_need(0.5, centred=True), batch()
    guarded(step)(data)
    assert step.ran[-1] < 64
    assert ["centre mixes" in event.text for event in events if event.name == "note"] == [True]


@pytest.mark.parametrize("foresees", [False, True])
def test_exact_keeps_the_batch_whole_and_computes_again(events, foresees):
    net = {"width": 8, "depth": 12, "centred": True}
    step, data = in_need(0.7, samples=512, foresees=foresees, **net), batch(512, 8)
    guard = guarded(step, exact=True)
    for _ in range(2):
        guard(data)
    assert step.blocks
    assert set(step.ran) == {None}
    assert bool(step.undone) != foresees
    assert_trained(step, [data] * 2)
    assert any("recomputed" in event.text for event in events)


def test_exact_gives_up_before_it_would_train_differently(events):
    step = in_need(0.1, centred=True)
    before = step.state()
    with pytest.raises(CannotFitError, match="centre mixes"):
        guarded(step, exact=True)(batch())
    assert set(step.ran) <= {None, "lean"}
    assert_same(step.state(), before)


def test_other_errors_are_the_steps_own():
    step = Step(Pool())
    with pytest.raises(ValueError, match="operands"):
        guarded(step)((np.zeros((4, 8)), np.zeros((3, 8))))
    assert step.updates == 0


def test_no_framework_is_needed():
    asked = ["-q", "-p", "no:cacheprovider", "-k", "not no_framework", __file__]
    code = (
        "import sys, pytest\n"
        "sys.modules.update(dict.fromkeys(('tensorflow', 'keras', 'jax', 'torch')))\n"
        f"code = pytest.main({asked})\n"
        "assert not any('legroom.backends.tensorflow' in name for name in sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
