from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.core.errors import SnapshotError
from legroom.snapshots.folder import RunFolder, RunIdentity


def opened(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.open()
    return folder


def test_a_run_with_nothing_to_keep_leaves_nothing(tmp_path: Path) -> None:
    folder = opened(tmp_path / ".legroom" / "train.py")
    folder.begin(RunIdentity("train.py"))
    folder.journal.write_text("")
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_users_own_keeps_its_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = opened(tmp_path)
    folder.result(0).write_bytes(b"")
    folder.clear()
    folder.close()
    assert sorted(os.listdir(tmp_path)) == [".gitignore", "lock", "notes.txt"]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for training in (0, 12):
        for _ in range(5):
            folder.next_snapshot(training).write_bytes(b"")
            folder.keep_newest(training)
    assert [path.name for path in folder.snapshots(12)] == [
        "training-0012-000000004.snapshot", "training-0012-000000003.snapshot",
    ]  # fmt: skip
    assert folder.trainings() == [12, 0]
    folder.close()
    assert folder.has_snapshots()


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    with pytest.raises(SnapshotError, match=r"Another run.*--dir"):
        RunFolder(tmp_path).open()
    folder.close()
    opened(tmp_path).close()


def test_a_killed_run_frees_its_folder_and_its_leftovers_go(tmp_path: Path) -> None:
    code = (
        "import os, sys; from legroom.snapshots.folder import RunFolder\n"
        "RunFolder(sys.argv[1]).open()\n"
        "from legroom.core.files import atomic_file\n"
        "with atomic_file(sys.argv[1] + '/training-0000-000000000.snapshot') as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert any(name.startswith(".unfinished") for name in os.listdir(tmp_path))
    folder = opened(tmp_path)
    assert not any(name.startswith(".unfinished") for name in os.listdir(tmp_path))
    assert not folder.has_snapshots()
    folder.close()


def test_what_is_set_aside_can_be_gone_on_with(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.begin(RunIdentity("a.py", ("--x",), "code", 3, 1.0))
    for training in (0, 1):
        folder.result(training).write_bytes(b"")
    folder.next_snapshot(2).write_bytes(b"")
    previous = folder.set_aside(from_training=2)
    assert folder.trainings() == [1, 0]
    assert RunFolder(previous).trainings() == [2, 1, 0]
    assert RunFolder(previous).identity() == folder.identity() is not None
    folder.set_aside()
    assert folder.trainings() == []
    assert RunFolder(previous).trainings() == [1, 0]
    assert folder.identity() is None


def test_an_identity_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"kind": "RunIdentity", "version": 99}')
    assert RunFolder(tmp_path).identity() is None


def test_a_place_that_can_not_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="directory"):
        RunFolder(tmp_path / "file" / "x").open()
