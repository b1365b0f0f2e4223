"""The parent's own signal state is left as it was found, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


def test_held_signals_are_forgotten_and_the_state_is_put_back() -> None:
    done = python(
        "import os, signal\n"
        "from legroom.supervisor.signals import held_signals\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
        "before = signal.getsignal(signal.SIGCHLD)\n"
        "with held_signals() as held:\n"
        "    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "        os.kill(os.getpid(), number)\n"
        "    print(sorted(held) == [signal.SIGUSR2], len(signal.sigpending()))\n"
        "mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "print(mask == {signal.SIGUSR2}, signal.getsignal(signal.SIGCHLD) == before)\n"
    )
    assert (done.stdout, done.stderr) == ("True 3\nTrue True\n", "")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGINT]
)
def test_dies_by_a_signal_even_if_held_or_handled(number: signal.Signals) -> None:
    done = python(
        "import signal\n"
        "from legroom.supervisor.signals import die_by\n"
        f"if {number:d} != signal.SIGKILL: signal.signal({number:d}, lambda *_: print('handled'))\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{number:d}}})\n"
        f"die_by({number:d})\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_a_signal_that_does_not_end_gives_the_shells_code() -> None:
    done = python(
        f"from legroom.supervisor.signals import die_by; raise SystemExit(die_by({signal.SIGCHLD}))"
    )
    assert done.returncode == 128 + signal.SIGCHLD
