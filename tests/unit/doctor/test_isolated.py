"""A function in a process of its own: real processes, no framework."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from legroom.core.errors import LegroomError, OutOfMemoryError
from legroom.core.events import Event, listening
from legroom.doctor.isolated import isolated


class Refused(Exception):
    """Its `__init__` takes other arguments than it keeps, as many do."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(f"{name} was refused {count} times")
        self.count = count


def test_the_result_comes_back_from_another_process() -> None:
    base = {"numbers": [1, 2]}
    here = os.getpid()
    there, result = isolated(lambda extra, *, by: (os.getpid(), base["numbers"] * by + extra),
                             [3], by=2)  # fmt: skip
    assert there != here
    assert result == [1, 2, 1, 2, 3]


def test_an_error_is_the_same_error() -> None:
    def fail() -> None:
        raise Refused("layer", 3)

    with pytest.raises(Refused, match="layer was refused 3 times") as caught:
        isolated(fail)
    assert caught.value.count == 3
    assert "raise Refused" in str(caught.value.__cause__), "its traceback is shown"
    with pytest.raises(FileNotFoundError) as missing:
        isolated(open, "/nowhere/at/all")
    assert missing.value.errno == 2
    with pytest.raises(SystemExit) as left:
        isolated(sys.exit, 5)
    assert left.value.code == 5


def test_a_killed_process_is_out_of_memory_and_others_are_not() -> None:
    with pytest.raises(OutOfMemoryError, match="SIGKILL"):
        isolated(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LegroomError, match="SIGSEGV") as died:
        isolated(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert not isinstance(died.value, OutOfMemoryError)
    with pytest.raises(LegroomError, match="exit code 4"):
        isolated(os._exit, 4)


def test_what_cannot_travel_is_said() -> None:
    with pytest.raises(LegroomError, match="can't be sent to another process"):
        isolated(len, (k for k in "ab"))
    with pytest.raises(LegroomError, match="can't be brought back"):
        isolated(lambda: (k for k in "ab"))
    with pytest.raises(TypeError, match="Expected something to call"):
        isolated("train")  # type: ignore[arg-type]


def test_output_goes_where_this_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    isolated(lambda: print("épochs: 3"))
    assert "épochs: 3" in capsys.readouterr().out


def test_large_arguments_and_results() -> None:
    assert isolated(bytes.upper, b"ab" * 2_000_000) == b"AB" * 2_000_000


def test_the_peak_is_told() -> None:
    events: list[Event] = []
    with listening(events.append):
        isolated(lambda: len(bytearray(100_000_000)))
    assert events[-1].name == "isolated"
    assert 100e6 < events[-1].data["peak_bytes"] < 200e6


def test_a_script_without_a_main_guard_and_without_a_left_over_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import helper, legroom, os, sys, time
            print(legroom.isolated(lambda: helper.twice(4)))
            print("up", flush=True)
            legroom.isolated(lambda: (print(os.getpid(), flush=True), time.sleep(60)))
        """)
    )
    (tmp_path / "helper.py").write_text("def twice(x): return 2 * x")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "8\n"
    assert process.stdout.readline() == "up\n"
    assert int(process.stdout.readline()) != process.pid
    process.kill()
    process.wait()
    assert process.stdout.read() == "", "the pipe closes: the child is gone with its parent"
