from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from legroom.core.events import Event, RanOut, Unknown, emit, listening
from legroom.report.journal import Journal, read_journal

EVENTS: list[Event] = [RanOut("läuft\n" * i, batch_size=i) for i in range(4)]


def written(path: Path, events: list[Event]) -> bytes:
    journal = Journal(path)
    for event in events:
        journal(event)
    journal.close()
    return path.read_bytes()


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert written(path, EVENTS).count(b"\n") == len(EVENTS)
    assert read_journal(path) == EVENTS


def test_a_journal_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, EVENTS[:2])
    written(path, EVENTS[2:])
    assert read_journal(path) == EVENTS


@given(cut=st.integers(0, 400))
def test_cut_anywhere_the_whole_lines_are_read(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.jsonl"
    whole = written(path, EVENTS)
    part = whole[: cut % len(whole)]
    path.write_bytes(part)
    complete = part.count(b"\n")
    read = read_journal(path)
    # A cut that takes only the newline leaves a whole event.
    assert read[:complete] == EVENTS[:complete]
    assert len(read) - complete in (0, 1)
    assert read == EVENTS[: len(read)]
    # Going on after the cut loses nothing that is written from then on.
    written(path, EVENTS[2:])
    assert read_journal(path) == [*read, *EVENTS[2:]]


@given(garbage=st.binary(max_size=200))
def test_garbage_between_events_is_passed_over(tmp_path_factory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "journal.jsonl"
    whole = written(path, EVENTS)
    path.write_bytes(whole + garbage + b"\n" + whole)
    assert read_journal(path) == EVENTS * 2


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == []


def test_a_killed_process_leaves_all_it_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import os, signal\n"
        "from legroom.core.events import RanOut, emit, listening\n"
        "from legroom.report.journal import Journal\n"
        f"with listening(Journal({str(path)!r})):\n"
        "    for i in range(100): emit(RanOut('again', batch_size=i))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert [event.data["batch_size"] for event in read_journal(path)] == list(range(100))


def test_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    journal = Journal("/dev/full")
    with listening(journal):
        emit(RanOut("the disk is full"))
        emit(RanOut("and stays so"))
    journal.close()


def test_data_that_is_no_json_is_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, [Unknown(told_name="odd", told_data={"path": Path("a"), "set": {1}})])
    (event,) = read_journal(path)
    assert event.data == {"path": "a", "set": "{1}"}


def test_two_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    pid = os.fork()
    for i in range(200):
        name = "child" if pid == 0 else "parent"
        journal(Unknown("x" * 500, told_name=name, told_data={"i": i}))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    journal.close()
    events = read_journal(path)
    for name in ("child", "parent"):
        assert [e.data["i"] for e in events if e.name == name] == list(range(200))
