"""When snapshots are due, what is read back, and what a write that fails costs."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from legroom.core.events import Event, listening
from legroom.snapshots.folder import RunFolder
from legroom.snapshots.run import SnapshotRun, current_run, running


@pytest.fixture
def run(tmp_path: Path):
    folder = RunFolder(tmp_path / "kept")
    folder.open()
    made = SnapshotRun(folder, every=1000, seed=1)
    yield made
    made.close()
    folder.close()


def write(run: SnapshotRun, training: int, value: int, **options) -> None:
    def collect(arrays: list) -> dict:
        arrays.append(np.full(4, value))
        return {"value": value}

    run.write(training, collect, at_once=True, **options)


def test_the_newest_that_can_be_trusted_is_used(run: SnapshotRun) -> None:
    for value in range(4):
        write(run, 0, value)
    newest, before = run.folder.snapshots(0)
    assert run.newest(0).values == {"value": 3}
    newest.write_bytes(newest.read_bytes()[:-70])
    said: list[Event] = []
    with listening(said.append):
        assert run.newest(0).values == {"value": 2}
    assert "cut short" in said[0].text
    assert run.folder.snapshots(0) == [before]  # the damaged one is not in the way any more
    before.write_bytes(b"junk")
    assert run.newest(0) is None


def test_a_result_replaces_the_snapshots_of_its_training(run: SnapshotRun) -> None:
    write(run, 2, 1)
    write(run, 2, 5, finished=True)
    assert run.folder.snapshots(2) == []
    assert run.result(2).arrays[0].tolist() == [5, 5, 5, 5]
    assert run.result(1) is None
    assert run.newest_after(0).values == {"value": 5}


def test_passes_that_change_the_same_objects_are_one_loop(run: SnapshotRun) -> None:
    class Model:
        pass

    one, other, log = Model(), Model(), {}
    assert [run.loop_of(number, [one, log]) for number in (3, 4)] == [3, 3]
    assert run.loop_of(5, [other, log]) == 5
    assert run.loop_of(6, [other, {}]) == 6
    held = weakref.ref(other)
    del other
    assert held() is None


def test_of_a_loop_only_its_own_passes_are_found(run: SnapshotRun) -> None:
    for training, loop in ((1, 0), (2, 2)):
        run.write(training, lambda arrays, loop=loop: {"loop": loop}, finished=True, at_once=True)
    assert run.newest_after(0).values == {"loop": 2}
    assert run.newest_after(0, 0).values == {"loop": 0}
    assert run.newest_after(2, 2) is None


def test_short_epochs_do_not_pile_up_snapshots(run: SnapshotRun) -> None:
    assert not run.due(epoch_ended=False)
    assert run.due(epoch_ended=True)
    write(run, 0, 1)
    run._cost = 10.0  # a copy that takes ten seconds
    assert not run.due(epoch_ended=True)
    assert not run.due_result()
    run.every = 0
    assert run.due(epoch_ended=False)
    assert run.due_result()


def test_a_write_that_fails_is_said_once_and_costs_nothing_else(run: SnapshotRun) -> None:
    said: list[Event] = []
    run.folder.path = run.folder.path / "gone"
    with listening(said.append):
        for value in range(3):
            write(run, 0, value)
    texts = [event.text for event in said if event.name == "note"]
    assert len(texts) == 1
    assert "The training continues" in texts[0]
    run.folder.path = run.folder.path.parent
    write(run, 0, 9)
    assert run.newest(0).values == {"value": 9}


def test_another_training_is_put_aside(run: SnapshotRun) -> None:
    write(run, 0, 1, finished=True)
    write(run, 1, 2)
    said: list[Event] = []
    with listening(said.append):
        run.start_anew(1, "it is another one")
    assert "previous" in said[0].text
    assert run.newest(1) is None
    assert run.result(0) is not None


def test_a_forked_process_is_not_the_run(run: SnapshotRun, monkeypatch) -> None:
    assert current_run() is None
    with running(run):
        assert current_run() is run
        monkeypatch.setattr("os.getpid", lambda: -1)
        assert current_run() is None
        monkeypatch.undo()
    assert current_run() is None
