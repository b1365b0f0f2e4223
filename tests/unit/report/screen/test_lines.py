"""Live lines, in a real terminal, a real pipe and a real file."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.core.events import Note, Progress
from legroom.report.screen.lines import LiveLines, say

OOM = (
    "out of memory at conv2d_1 (848 MB more needed): batch 256 now runs as 4 slices of 64; "
    "the step was repeated, nothing lost"
)
# A script that draws a bar as Keras does: it redraws its line and leaves the cursor behind it.
SCRIPT = f"""
import sys, time
from legroom.core.events import Note, RanOut, TrainingFinished, TrainingStarted
from legroom.report.screen.lines import LiveLines
lines = LiveLines()
lines(TrainingStarted(method="fit"))
for step in range(1, 4):
    sys.stdout.write("\\b" * 20 + f"\\r{{step}}/3 [=====]"); sys.stdout.flush()
    if step == 2:
        lines(RanOut({OOM!r}))
        lines(Note("said in the same breath"))
sys.stdout.write("\\n")
lines(TrainingFinished(method="fit"))
lines(Note("after the bar"))
"""


def environment(**extra: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    return {**env, "TERM": "xterm", "COLUMNS": "80", **extra}


def in_terminal(code: str, **extra: str) -> str:
    """Run code with all its streams in one terminal; what the terminal got, as lines."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave, stdout=slave, stderr=slave, env=environment(**extra),
    )  # fmt: skip
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 4096):
            output += chunk
    except OSError:  # EIO: the other end is closed
        pass
    assert child.wait() == 0
    os.close(master)
    return output.decode().replace("\r\n", "\n")


def test_the_bar_and_the_lines_share_a_terminal() -> None:
    output = in_terminal(SCRIPT, NO_COLOR="1")
    shown = [line.rpartition("\r")[2] for line in output.split("\n")]
    assert shown == [
        "2/3 [=====]",
        "legroom: out of memory at conv2d_1 (848 MB more needed): batch 256 now runs as",
        "         4 slices of 64; the step was repeated, nothing lost",
        "legroom: said in the same breath",
        "3/3 [=====]",
        "legroom: after the bar",
        "",
    ]


def test_colour_in_a_terminal_unless_not_wanted() -> None:
    assert "\x1b[33mlegroom: \x1b[0mout of memory" in in_terminal(SCRIPT)
    assert "\x1b" not in in_terminal(SCRIPT, NO_COLOR="1")
    assert "\x1b" not in in_terminal(SCRIPT, TERM="dumb")


def test_one_pipe_for_both() -> None:
    """``2>&1 | tee log``: Keras still redraws its bar, so a line of ours begins on a new one."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), text=True,
    )  # fmt: skip
    lines = done.stdout.split("\n")
    assert f"legroom: {OOM}" in lines
    assert "\x1b" not in done.stdout


def test_apart_from_each_other_there_is_one_line_an_event() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, env=environment(), text=True
    )
    assert done.stderr.split("\n") == [
        f"legroom: {OOM}",
        "legroom: said in the same breath",
        "legroom: after the bar",
        "",
    ]
    assert "legroom" not in done.stdout


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("layer \x1b[2Jwiped", "legroom: layer [2Jwiped\n"),
        ("two\nlines\tand\r\na tab", "legroom: two lines and a tab\n"),
        ("right \u202eto left", "legroom: right to left\n"),
        ("\x00\x07bell", "legroom: bell\n"),
        ("Größe 層", "legroom: Größe 層\n"),
    ],
)
def test_text_is_data(text: str, line: str) -> None:
    stream = io.StringIO()
    LiveLines(stream)(Note(text))
    assert stream.getvalue() == line


def test_no_text_no_line() -> None:
    stream = io.StringIO()
    LiveLines(stream)(Progress(samples_seen=1))
    assert stream.getvalue() == ""


def test_messages_of_several_lines_keep_them() -> None:
    stream = io.StringIO()
    say("does not fit.\n\n  one sample  2 GB\nTry less.", stream=stream)
    assert stream.getvalue() == (
        "legroom: does not fit.\n\n           one sample  2 GB\n         Try less.\n"
    )


def test_a_stream_that_is_gone_does_not_matter(tmp_path: Path) -> None:
    closed = (tmp_path / "x").open("w")
    closed.close()
    say("nobody reads this", stream=closed)
    full = open("/dev/full", "w")  # noqa: SIM115
    say("nor this", stream=full)
    with pytest.raises(OSError, match="No space left"):
        full.close()
