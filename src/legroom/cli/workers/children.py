"""Child processes of ``legroom demo`` and ``legroom selftest``.

They train in processes of their own, because a cap on the device is set once in the life of a
process, and because some of them are meant to die. Whatever ends the command, Ctrl-C too, ends
them as well, and takes along the one folder that all of their files are in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from legroom.backends.base import SPELLED, used_name
from legroom.core.errors import LegroomError
from legroom.core.process.lifeline import ends_with_this
from legroom.core.units import MEMORY_VARIABLE, UNITS_VARIABLE

__all__ = ["Ended", "Workplace", "error_lines", "framework", "workplace"]

_TICK = 0.2
# The line of an error that says what was asked for.
_RAN_OUT = re.compile(r"OOM when|can't allocate memory|[Oo]ut of memory")
# JAX says it once for each step that waited for the one that failed.
_REPEATED = re.compile(r"(\b[\w ]+: )\1+")
# What a user may have set for other runs and would change these.
_NOT_PASSED_ON = (
    "LEGROOM_DISABLE",
    MEMORY_VARIABLE,
    UNITS_VARIABLE,
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB",
    "TF_MKL_ALLOC_MAX_BYTES",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
# Runs are compared number by number: oneDNN and TF32 would each round in a way of their own.
_COMPARABLE = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "NVIDIA_TF32_OVERRIDE": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """A child process that has ended.

    Attributes:
        code: Its exit code; negative for the signal it died by.
        seconds: How long it ran.
        output: What it wrote, both streams together.
    """

    code: int
    seconds: float
    output: str


class Workplace:
    """A folder for the files of children, and the way to run them in it.

    Args:
        folder: The folder.
        backend: What Keras runs on in them.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder = folder
        self.backend = backend

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        on_line: Callable[[str], None] | None = None,
    ) -> Ended:
        """Run Python with these arguments, and wait for its end.

        Args:
            command: The arguments of Python, the script first.
            environment: Variables that the child has beside this process's.
            timeout: Seconds after which it is killed.
            on_line: Called with every line that it writes, at once.
        """
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
        # Its temporary files lie in our folder, and go with it if it is killed.
        kept |= {**_COMPARABLE, "KERAS_BACKEND": self.backend, "TMPDIR": str(self.folder)}
        kept |= environment or {}
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, *(str(part) for part in command)],
            cwd=self.folder,
            env=kept,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C comes to us, and we end the child and all that it started.
            start_new_session=True,
            preexec_fn=ends_with_this(),
        )
        try:
            output = _read(child, began + timeout, on_line or (lambda line: None))
            code = child.wait()
        finally:
            _kill(child)
        return Ended(code, time.monotonic() - began, output)


@contextlib.contextmanager
def workplace(backend: str) -> Iterator[Workplace]:
    """A place to run children in, gone at the end whatever happens.

    Args:
        backend: What Keras runs on in them.
    """
    with (
        _ended_by(signal.SIGTERM, signal.SIGHUP),
        tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder,
    ):
        yield Workplace(Path(folder).resolve(), backend)


def framework() -> str:
    """What Keras runs on here, as it calls it; of those that legroom knows, one that is installed.

    Raises:
        LegroomError: If there is none.
    """
    name = used_name()
    if "KERAS_BACKEND" not in os.environ and not _has(name):
        # Keras would not find the one that it looks for by default, here and in children.
        found = next(filter(_has, SPELLED), name)
        name = os.environ["KERAS_BACKEND"] = found
    if name not in SPELLED:
        raise LegroomError(
            f"This runs on TensorFlow, PyTorch and JAX; here Keras runs on {name!r}. "
            "Set KERAS_BACKEND to tensorflow, torch or jax."
        )
    if not _has(name):
        raise LegroomError(
            f"This needs {SPELLED[name]}, and the Python at {sys.executable} has none. "
            f'Install it with: pip install "legroom[{name}]"'
        )
    return name


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def error_lines(output: str) -> str:
    """The message of the error that a script died of, without the trace that led to it."""
    from rich.text import Text

    lines = [Text.from_ansi(line).plain.strip() for line in output.splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        name, colon, rest = lines[number].partition(": ")
        last = name.rpartition(".")[2]
        if colon and " " not in name and last.endswith(("Error", "Exception", "Exit")):
            told = [line for line in (rest, *lines[number + 1 :]) if _RAN_OUT.search(line)]
            return _REPEATED.sub(r"\1", f"{last}: {told[-1] if told else rest}")
    return lines[-1] if lines else "no output"


def _read(child: subprocess.Popen[bytes], deadline: float, on_line: Callable[[str], None]) -> str:
    """Read what a child writes until it ends, or its time does."""
    assert child.stdout is not None
    done, rest = bytearray(), b""
    with selectors.DefaultSelector() as selector, child.stdout as pipe:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            # With a timeout even where it could wait: a signal is only handled in between.
            if not selector.select(_TICK):
                continue
            data = os.read(pipe.fileno(), 65536)
            if not data:
                break
            done += data
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
        else:
            _kill(child)
            done += b"\nTimeoutError: it took too long and was ended\n"
    return done.decode(errors="replace")


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started. There is nothing in them that would need saving."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextlib.contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Leave by an exception, so that everything is tidied up, when one of these signals comes."""

    def leave(number: int, frame: Any) -> None:
        del frame
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
