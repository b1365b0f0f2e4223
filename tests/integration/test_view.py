"""The live view in a terminal of 80x24, and the terminal afterwards."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import LEGROOM, Place
from .terminal import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux terminal")

# A run as it looks to the parent, without the seconds that a framework takes to be imported: the
# events of trainings are told by hand, and the guard is not needed to tell them.
SCRIPT = """
    import sys, time
    from legroom.core.events import MemorySampled, Planned, TrainingStarted, emit

    emit(TrainingStarted(method="fit"))
    emit(Planned("batch 64 starts as 4 slices of 16", batch_size=64, slice_size=16, slices=4,
                 budget_bytes=100_000_000))
    print("from the script")
    for k in range(int(sys.argv[1])):
        emit(MemorySampled(device_bytes=50_000_000 + 1_000_000 * (k % 10), host_bytes=200_000_000,
                           peak_bytes=60_000_000, steps=k, samples=64 * k))
        print(f"\\rstep {k} ", end="", flush=True)
        time.sleep(0.1)
    print("\\rall steps ")
    if len(sys.argv) > 2:
        raise SystemExit("it failed")
"""


@pytest.fixture
def terminals(place: Place) -> Iterator[Any]:
    opened = []

    def start(*command: str, columns: int = 80, rows: int = 24) -> Terminal:
        environment = {**place.environment(), "PYTHONUNBUFFERED": "1"}
        terminal = Terminal([LEGROOM, *command], place.folder, environment, columns, rows)
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


def seen(terminal: Terminal) -> bool:
    return "device" in terminal.text() and "█" in terminal.text()


def test_the_panel_is_there_while_it_runs_and_gone_afterwards(place: Place, terminals: Any) -> None:
    place.write(SCRIPT)
    terminal = terminals("run", "--view", "script.py", "15")
    terminal.wait(lambda: seen(terminal) and "steps/s" in terminal.text())
    shown = terminal.text()
    assert "── legroom run script.py" in shown
    assert "peak 60.0 MB of 100 MB" in shown
    assert "batch 64 as 4 slices of 16" in shown
    assert "100 MB ──" in shown  # the limit's line
    assert len(terminal.screen.display) == 24
    assert "from the script" in shown
    terminal.wait()
    after = terminal.text()
    assert terminal.code == 0
    assert "from the script" in after
    assert "all steps" in after
    assert "─ legroom run" not in after
    assert "█" not in after
    assert after.count("batch 64 starts as") == 1
    assert terminal.is_as_found()


@pytest.mark.parametrize("end", ["interrupt", "failure", "kill"])
def test_the_terminal_is_as_it_was_however_it_ends(place: Place, terminals: Any, end: str) -> None:
    place.write(SCRIPT)
    steps = "8" if end == "failure" else "600"
    terminal = terminals("run", "--view", "script.py", steps, *(["x"] * (end == "failure")))
    terminal.wait(lambda: seen(terminal))
    if end == "interrupt":
        terminal.type("\x03")
    elif end == "kill":
        os.kill(terminal.pid, signal.SIGTERM)
    terminal.wait()
    expected = {"interrupt": -signal.SIGINT, "failure": 1, "kill": -signal.SIGTERM}
    assert terminal.code == expected[end]
    after = terminal.text()
    assert "─ legroom run" not in after
    assert "█" not in after
    if end == "failure":
        assert "it failed" in after
    assert terminal.is_as_found()


def test_a_terminal_that_changes_its_size_is_left_clean(place: Place, terminals: Any) -> None:
    place.write(SCRIPT)
    terminal = terminals("run", "--view", "script.py", "22", columns=100, rows=30)
    terminal.wait(lambda: seen(terminal))
    for columns, rows in ((60, 20), (90, 24)):
        terminal.resize(columns, rows)
        terminal.wait(lambda: "all steps" in terminal.text() or terminal.raw.count(b"\x1b[J") > 3)
        assert all(len(line.rstrip()) <= columns for line in terminal.screen.display)
    terminal.wait()
    assert terminal.text().rstrip().splitlines()[-1].startswith(("all steps", "╰"))
    assert terminal.is_as_found()


TRAINING = """
    import keras, numpy as np
    layers = keras.layers
    model = keras.Sequential([keras.Input((64, 64, 3)), layers.Conv2D(16, 3), layers.Flatten(),
                              layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((320, 64, 64, 3), "float32")
    model.fit(x, x[:, :1, 0, 0], batch_size=32, epochs=2)
"""


def test_a_word_in_the_progress_bar_of_keras(place: Place, terminals: Any) -> None:
    place.write(TRAINING)
    wide = terminals("run", "--memory", "300MiB", "script.py", columns=120)
    narrow = terminals("run", "--memory", "300MiB", "--dir", "other", "script.py", columns=60)
    wide.wait()
    narrow.wait()
    lines = [line for line in wide.text().splitlines() if "10/10" in line]
    assert len(lines) == 2
    assert all(re.search(r"loss: \S+ - memory: \d+(\.\d+)? MiB/300 MiB", line) for line in lines)
    assert "- memory:" not in narrow.text()
    piped = place.legroom("run", "--memory", "300MiB", "--fresh", "script.py")
    assert "10/10" in piped.stdout
    assert "- memory:" not in piped.stdout


def test_without_a_terminal_there_are_plain_lines(place: Place) -> None:
    place.write(SCRIPT)
    done = place.legroom("run", "--view", "script.py", "2")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "legroom: batch 64 starts as 4 slices of 16" in done.stderr


ALLOCATES = """
    import time
    held = bytearray(80_000_000)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(1)
    del held
    print("freed", flush=True)
    time.sleep(1)
    raise SystemExit(5)
"""


def test_watching_a_command_in_a_terminal(place: Place, terminals: Any) -> None:
    place.write(ALLOCATES)
    terminal = terminals("watch", "--every", "0.1", "--", sys.executable, "script.py")
    # The screen is drawn line by line: each of these must come, but not at the same moment.
    terminal.wait(lambda: all(x in terminal.text() for x in ("freed", "█", "main memory")))
    terminal.wait()
    assert terminal.code == 5
    assert "█" not in terminal.text()
    assert "legroom: at most " in terminal.text()
    assert terminal.is_as_found()


def test_watching_for_machines(place: Place) -> None:
    place.write(ALLOCATES)
    done = place.legroom("watch", "--csv", "--every", "0.1", "--", sys.executable, "script.py")
    assert done.returncode == 5
    assert done.stderr == "freed\n"
    head, *rows = [line.split(",") for line in done.stdout.splitlines()]
    host = [int(row[head.index("host_bytes")]) for row in rows]
    assert len(host) > 3
    assert 80_000_000 < max(host) < 160_000_000
    assert host[-1] < max(host) - 60_000_000  # it was freed, and that is to be seen


def test_a_watched_command_ends_with_its_watcher(place: Place) -> None:
    place.write("""
        import os, signal, sys, time
        def leave(number, frame):
            print("told", flush=True)
            sys.exit(7)
        signal.signal(signal.SIGTERM, leave)
        print("ready", flush=True)
        time.sleep(60)
    """)
    watcher = place.start("watch", "--", sys.executable, "script.py")
    assert watcher.stdout.readline() == "ready\n"
    watcher.terminate()
    output, _ = watcher.communicate(timeout=30)
    assert (watcher.returncode, output) == (7, "told\n")


def test_watching_what_is_not_there(place: Place) -> None:
    gone = place.legroom("watch", "--", "no-such-command")
    assert gone.returncode == 127
    assert "no-such-command can't be started" in gone.stderr
    nobody = place.legroom("watch", "999999999")
    assert nobody.returncode == 2
    assert "There is no process 999999999" in nobody.stderr
