"""A Keras training on PyTorch that ends in the middle resumes bit for bit, whatever it is fed.

Here it ends by an exception, at chosen places, and resumes in the same process: quick enough for
every kind of input. tests/faults/test_torch_killed.py kills real processes.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytestmark = pytest.mark.on_torch("tests/faults/test_killed.py has the same for TensorFlow")
torch = pytest.importorskip("torch")

import keras  # noqa: E402
from tests.faults import kept_torch_child as cases  # noqa: E402

import legroom  # noqa: E402
from legroom.core.events import Note, Resumed, listening  # noqa: E402
from legroom.snapshots.folder import RunFolder  # noqa: E402
from legroom.snapshots.run import SnapshotRun, current_run, running  # noqa: E402

CASES = ["arrays", "batchwise", "unbuilt", "sequence", "generator", "pipeline"]
LOADERS = ["own_generator", "noisy", "rows", "own_order", "workers"]
BY_STEPS = ["loader_noisy_by_steps", "loader_own_generator_by_steps"]
# Epochs and batches in them: the start of one, where its iterator is still to be made, too.
PLACES = [(0, 1), (1, 0), (1, 5)]


class Ends(BaseException):
    """The end of a training, as far as it comes."""


class Stop(keras.callbacks.Callback):
    """Draws numbers of its own, and ends the training at a place, which it does not remember."""

    place = None

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if Stop.place == (self.epoch, batch):
            raise Ends

    def on_train_batch_end(self, batch, logs=None):
        self.drawn.append(float(torch.rand(())))
        if (run := current_run()) is not None:
            run.wait()  # else the next snapshot may be left out


def trained(case, place=None):
    """Train from the top; what it comes to."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    named = case.removeprefix("loader_").removesuffix("_by_steps")
    model, inputs, options = cases.loader(named) if named in LOADERS else getattr(cases, case)()
    stop, Stop.place = Stop(), place
    options["callbacks"] = [stop, *options.get("callbacks", [])]
    if case.endswith("_by_steps"):
        options["steps_per_epoch"] = 9  # of 15 that there are: an iterator lasts for two epochs
    history = legroom.fit(model, *inputs, epochs=2, verbose=0, **options)
    counts = next(v for v in model.variables if v.path.endswith("counts"))
    assert set(counts.numpy().tolist()) == {1.0 if case.endswith("_by_steps") else 2.0}
    values = [v.value for v in (*model.variables, *model.optimizer.variables)]
    buffers = [b for layer in model._flatten_layers() for b in layer.buffers()]
    logs = [np.array(v) for v in history.history.values()]
    return [*[v.detach().numpy().copy() for v in (*values, *buffers)], *logs,
            np.array(stop.drawn), torch.rand(2).numpy(), np.random.random(2),
            np.array(random.random())]  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", [*CASES, *(f"loader_{name}" for name in LOADERS), *BY_STEPS])
def test_resumes_bit_for_bit(case, tmp_path):
    if case == "pipeline":
        pytest.importorskip("tensorflow")
    expected = trained(case)
    places = PLACES[1:] if case == "loader_workers" else PLACES  # processes take their time
    for place in places:
        folder = RunFolder(tmp_path / str(place))
        folder.open()
        with pytest.raises(Ends), running(SnapshotRun(folder, every=0.0, seed=1)):
            trained(case, place)
        assert folder.snapshots(0)
        events = []
        with running(SnapshotRun(folder, every=60.0, seed=1)), listening(events.append):
            result = trained(case)
        folder.close()
        assert [e for e in events if isinstance(e, Note)] == []
        resumed = [e for e in events if isinstance(e, Resumed)]
        assert [(e.epoch, e.step) for e in resumed] == [place]
        for number, (one, other) in enumerate(zip(expected, result, strict=True)):
            assert np.array_equal(one, other), f"{place}: {number}"
