"""Signals in the parent: held back, passed on once, and died by in the end.

The parent and the child share a process group, so that Ctrl-Z, ``fg`` and whatever else a shell
does to a job works as it does for plain Python. The price: a signal to the whole group reaches
both, a signal to the parent's id reaches only the parent, and only the latter may be passed on. The
kernel's own signals (Ctrl-C in a terminal, a hang-up) always go to the group. For the others the
child itself tells what it received, through a pipe that Python's signal handling writes to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Receipts", "die_by", "held_signals", "wait_and_pass_on"]

# What would end or wake the parent, and is the child's business instead.
_PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
_HELD = _PASSED_ON | {signal.SIGCHLD}
# Python's handler writes the receipt as soon as the child is scheduled. Waiting too long only
# delays a signal that was for the parent alone.
_RECEIPT_SECONDS = 0.25
# A machine that is taken away gives ten seconds as a rule.
_STOP_SECONDS = 8.5


class Receipts:
    """What the child says it received: the numbers of its signals, through a pipe.

    Attributes:
        pipe: The writing end, for the child.
    """

    def __init__(self) -> None:
        self._read, self.pipe = os.pipe()
        self._seen: dict[int, float] = {}
        self._changed = threading.Condition()

    def listen(self) -> None:
        """Begin to read, once the child has its end. Called after the fork: it starts a thread."""
        os.close(self.pipe)
        threading.Thread(target=self._listen, daemon=True).start()

    def came(self, number: int) -> bool:
        """Whether the child received such a signal itself, just now or within a moment."""
        now = time.monotonic()
        with self._changed:
            return self._changed.wait_for(
                lambda: self._seen.get(number, float("-inf")) > now - _RECEIPT_SECONDS,
                timeout=_RECEIPT_SECONDS,
            )

    def _listen(self) -> None:
        while numbers := os.read(self._read, 64):
            with self._changed:
                self._seen.update(dict.fromkeys(numbers, time.monotonic()))
                self._changed.notify_all()


@contextlib.contextmanager
def held_signals() -> Iterator[frozenset[signal.Signals]]:
    """Hold back the signals that are the child's business, as long as the context lasts.

    Yields:
        What was held back before, which is what the child must start with.
    """
    # Linux keeps a held SIGCHLD; elsewhere it is dropped while its action is the default.
    children = signal.signal(signal.SIGCHLD, lambda *_: None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield frozenset(number for number in before if isinstance(number, signal.Signals))
    finally:
        # The child has answered these, by ending or by not ending: they must not end us now.
        while late := signal.sigpending() & _HELD:
            signal.sigwait(late)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, children)


def wait_and_pass_on(
    child: subprocess.Popen[bytes],
    receipts: Receipts,
    *,
    every_second: Callable[[], None] | None = None,
    stops_itself: Callable[[], bool] = lambda: False,
) -> int:
    """Wait for the child's end and pass on the signals it did not get itself.

    To be called with signals held.

    Args:
        child: The child.
        receipts: What it says that it got.
        every_second: Called now and then meanwhile.
        stops_itself: Whether the child answers SIGTERM by itself, after it has kept what it needs
            to go on. If that takes too long, it is ended.

    Returns:
        Its exit code, or the negative number of the signal it died by.
    """
    deadline: float | None = None
    while (code := child.poll()) is None:
        number, to_the_group = _next_signal(1.0 if every_second or deadline else None)
        if every_second is not None:
            every_second()
        if deadline is not None and time.monotonic() > deadline:
            child.kill()
            child.wait()
            return -signal.SIGTERM
        if number in (None, signal.SIGCHLD):
            continue
        assert number is not None
        if not to_the_group and not receipts.came(number):
            child.send_signal(number)
        if number == signal.SIGTERM and deadline is None and stops_itself():
            deadline = time.monotonic() + _STOP_SECONDS
    return code


def _next_signal(seconds: float | None) -> tuple[int | None, bool]:
    """Wait for a signal: its number, and whether it surely went to the whole group."""
    if seconds is not None and hasattr(signal, "sigtimedwait"):
        timed = signal.sigtimedwait(_HELD, seconds)
        return (None, False) if timed is None else (timed.si_signo, timed.si_code > 0)
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_HELD)
        return info.si_signo, info.si_code > 0  # above 0: sent by the kernel
    return signal.sigwait(_HELD), False


def die_by(number: int) -> int:
    """End this process by a signal, so that whoever waits for it sees the same as for the child.

    Returns:
        The exit code to end with, should the signal not end the process.
    """
    import resource

    # The child has left its core file, if one is wanted: ours would only cover it.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL can't be changed, and need not be
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
