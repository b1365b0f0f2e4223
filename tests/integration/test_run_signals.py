"""Signals under ``legroom run``: each reaches the script, exactly once."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import LEGROOM, TIMEOUT, Place

# Counts what arrives; long enough after the first that a second one would be seen, and awake, so
# that two in close succession are handled one by one.
COUNTS = """
    import os, signal, sys, time
    got = []
    for name in sys.argv[1:]:
        signal.signal(getattr(signal, name), lambda number, frame: got.append(number))
    print("ready", os.getpid(), flush=True)
    end = time.monotonic() + 20
    while not got and time.monotonic() < end:
        pass
    time.sleep(0.6)
    print(*got, flush=True)
    sys.exit(4)
"""
# On one line, so that the traceback names it whenever the interrupt comes.
WAITS = """
    import os, time
    print("ready", os.getpid(), flush=True), time.sleep(60)
"""


@contextlib.contextmanager
def started(place: Place, code: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The parent, and the pid of the script that is ready."""
    place.write(code)
    parent = place.start("run", "script.py", *args)
    assert parent.stdout is not None
    try:
        word, pid = parent.stdout.readline().split()
        assert word == "ready"
        yield parent, int(pid)
    finally:
        if parent.poll() is None:
            parent.kill()
        parent.wait()
        for stream in (parent.stdin, parent.stdout, parent.stderr):
            if stream is not None:
                stream.close()


def gone(pid: int) -> bool:
    """Whether a process is no more, or only waits to be reaped by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("SIGINT", "parent"),
        ("SIGINT", "group"),
        ("SIGINT", "child"),
        ("SIGTERM", "parent"),
        ("SIGTERM", "group"),
        ("SIGHUP", "parent"),
        ("SIGQUIT", "group"),
        ("SIGUSR1", "parent"),
        ("SIGUSR2", "group"),
    ],
)
def test_a_handled_signal_arrives_once(place: Place, name: str, to: str) -> None:
    number = getattr(signal, name)
    with started(place, COUNTS, name) as (parent, child):
        if to == "group":
            os.killpg(parent.pid, number)
        else:
            os.kill(parent.pid if to == "parent" else child, number)
        output, errors = parent.communicate(timeout=TIMEOUT)
    assert (output, errors) == (f"{number:d}\n", "")
    assert parent.returncode == 4


def test_signals_one_after_the_other_all_arrive(place: Place) -> None:
    """One that the child got itself must not swallow a later one for the parent alone."""
    code = COUNTS.replace("time.sleep(0.6)", "time.sleep(2)")
    with started(place, code, "SIGINT") as (parent, child):
        os.kill(child, signal.SIGINT)
        time.sleep(0.6)
        os.kill(parent.pid, signal.SIGINT)
        output, _ = parent.communicate(timeout=TIMEOUT)
    assert output == "2 2\n"


@pytest.mark.parametrize("to", ["parent", "group"])
def test_an_interrupt_that_nobody_handles(place: Place, to: str) -> None:
    """KeyboardInterrupt with the script's traceback, and a death by SIGINT, as in plain Python."""
    with started(place, WAITS) as (parent, child):
        (os.kill if to == "parent" else os.killpg)(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=TIMEOUT)
    assert parent.returncode == -signal.SIGINT
    assert gone(child)
    lines = [line for line in errors.splitlines() if line.strip(" ~^")]  # marks of newer Pythons
    assert lines == [
        "Traceback (most recent call last):",
        f'  File "{place.folder}/script.py", line 3, in <module>',
        '    print("ready", os.getpid(), flush=True), time.sleep(60)',
        "KeyboardInterrupt",
    ]


@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGTERM, "parent"),
        (signal.SIGTERM, "group"),
        (signal.SIGHUP, "group"),
        (signal.SIGUSR1, "parent"),
        (signal.SIGQUIT, "parent"),
    ],
)
def test_a_signal_that_ends_the_script_ends_legroom(
    place: Place, number: signal.Signals, to: str
) -> None:
    with started(place, WAITS) as (parent, child):
        (os.kill if to == "parent" else os.killpg)(parent.pid, number)
        _, errors = parent.communicate(timeout=TIMEOUT)
    assert (parent.returncode, errors) == (-number, "")
    assert gone(child)


def test_a_killed_child_kills_the_parent_alike(place: Place) -> None:
    with started(place, WAITS) as (parent, child):
        os.kill(child, signal.SIGKILL)
        assert parent.wait(timeout=TIMEOUT) == -signal.SIGKILL


def test_a_killed_parent_takes_the_child_along(place: Place) -> None:
    with started(place, WAITS) as (parent, child):
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(timeout=TIMEOUT)
        assert eventually(lambda: gone(child))


def test_an_ignored_interrupt_stays_ignored(place: Place) -> None:
    """What ``nohup`` or a background job sets is inherited by the script."""
    place.write("import signal; print(repr(signal.getsignal(signal.SIGINT)))")
    done = subprocess.run(
        ["sh", "-c", f"trap '' INT; exec {LEGROOM} run script.py"],
        cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.stdout == f"{signal.SIG_IGN!r}\n"


def in_terminal(place: Place, command: list[str], typed: bytes) -> tuple[int, str]:
    """Run a command in a terminal of its own, type when it is ready; its status and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(command[0], command, place.environment())
    output = b""
    with contextlib.suppress(OSError):  # EIO: the last one has closed it
        while chunk := os.read(terminal, 4096):
            output += chunk
            if b"ready" in output and output.endswith(b"\n") and typed:
                os.write(terminal, typed)
                typed = b""
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), output.decode()


def test_ctrl_c_in_a_terminal_arrives_once(place: Place) -> None:
    place.write(COUNTS)
    status, output = in_terminal(place, [LEGROOM, "run", "script.py", "SIGINT"], b"\x03")
    assert status == 4
    assert output.splitlines()[-1].removeprefix("^C") == "2"


def test_ctrl_c_in_a_terminal_arrives_once_with_asyncio(place: Place) -> None:
    """asyncio takes the pipe of receipts for itself; the kernel's signals need none."""
    place.write(
        """
        import asyncio, signal
        async def main():
            got = []
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, got.append, 2)
            print("ready", flush=True)
            while not got:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.8)
            print(*got)
        asyncio.run(main())
        """
    )
    status, output = in_terminal(place, [LEGROOM, "run", "script.py"], b"\x03")
    assert (status, output.splitlines()[-1].removeprefix("^C")) == (0, "2")


def test_the_scripts_terminal_is_a_terminal(place: Place) -> None:
    place.write(
        """
        import os, sys
        print("ready", *(os.isatty(n) for n in range(3)), os.tcgetpgrp(0) == os.getpgrp())
        print("typed", input())
        """
    )
    status, output = in_terminal(place, [LEGROOM, "run", "script.py"], b"hello\n")
    assert status == 0
    assert "ready True True True True" in output
    assert "typed hello" in output
