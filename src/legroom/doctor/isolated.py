"""``legroom.isolated``: one training in a process of its own, its result as if it had run here.

When the process ends, all of its memory is free again, whatever TensorFlow, Keras, XLA or a
library pinned in it: the sure cure where `legroom.release` is not enough.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from legroom.core.errors import LegroomError, OutOfMemoryError
from legroom.core.events import (
    IsolatedFinished,
    IsolatedProgress,
    emit,
    has_listener,
    listening,
)
from legroom.core.units import format_bytes, format_seconds

__all__ = ["isolated"]

R = TypeVar("R")

_TELL_AFTER = (10, 30, 60)  # seconds, and then every minute
_LOOK_EVERY = 0.2
_WORTH_SAYING = 2  # seconds


def isolated(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Run a function in a fresh process and return what it returns.

    The function may be one of a notebook, of a script, a lambda or a closure: it is sent by value,
    with what it uses. Arguments and result have to be things that can be pickled; Keras models,
    arrays and histories are. What it prints is printed here, and an error it raises is raised here.

    Args:
        function: What to run, for example one training.
        *args: Its arguments.
        **kwargs: Its arguments.

    Returns:
        What the function returned.

    Raises:
        OutOfMemoryError: If the process was killed, as the kernel does when memory runs out.
        LegroomError: If it died otherwise, or something can't be sent.
    """
    if not callable(function):
        raise TypeError(
            "legroom.isolated runs a function: legroom.isolated(train, config). "
            f"Expected something to call. Received: {type(function).__name__}"
        )
    name = getattr(function, "__qualname__", None) or type(function).__name__
    payload = _packed((function, args, kwargs), f"{name} and its arguments")
    with _terminal():
        outcome, result = _run(name, payload)
    if outcome == "returned":
        return result
    parts, trace = result
    error = _remade(*parts)
    error.__cause__ = _RemoteTraceback(trace)
    raise error


def _remade(
    kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    """An error of the other process."""
    error = kind.__new__(kind, *arguments)
    with contextlib.suppress(Exception):  # it may take others than it keeps; most don't
        made = kind(*arguments)
        error = made if made.args == arguments else error
    error.args = arguments
    vars(error).update(attributes)
    return error


class _RemoteTraceback(Exception):
    """Shows where in the other process an error came from."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _packed(value: Any, what: str) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise LegroomError(
            f"{what} can't be sent to another process: {error}. Have the function make what it "
            "needs (data, data sets, strategies) itself, and pass it names and numbers."
        ) from error


def _run(name: str, payload: bytes) -> tuple[str, Any]:
    to_child, from_parent = os.pipe()[::-1]
    from_child, to_parent = os.pipe()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        outputs, relays = _outputs(stack)
        try:
            child = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("isolated_child.py")),
                 str(from_parent), str(to_parent), str(os.getpid())],
                pass_fds=(from_parent, to_parent), **outputs,
            )  # fmt: skip
        finally:
            os.close(from_parent)
            os.close(to_parent)
        stack.callback(_end, child)
        relays(child)
        preface = pickle.dumps({"path": sys.path, "guard": _guards_everything()})
        sender = threading.Thread(target=_send, args=(to_child, preface + payload), daemon=True)
        sender.start()
        with os.fdopen(from_child, "rb", buffering=0) as answers:
            answer, peak = _receive(name, child, answers, began)
        code = child.wait()
        sender.join()
    if not answer:
        raise _death(name, code, peak)
    outcome, result, peak = pickle.loads(answer)
    took = time.monotonic() - began
    text = (
        ""
        if took < _WORTH_SAYING
        else f"{name} took {format_seconds(took)} in a process of its own, with at most "
        f"{format_bytes(peak)}; all of that is free again."
    )
    emit(IsolatedFinished(text, function=name, seconds=took, peak_bytes=peak))
    if outcome == "unsendable":
        raise LegroomError(
            f"What {name} returned can't be brought back from its process: {result}. Return "
            "numbers, arrays, a History or a model."
        )
    return outcome, result


def _send(pipe: int, data: bytes) -> None:
    # A child that dies early reads nothing; its death is told elsewhere.
    with contextlib.suppress(OSError), os.fdopen(pipe, "wb") as file:
        file.write(data)


def _receive(
    name: str, child: subprocess.Popen[bytes], answers: io.FileIO, began: float
) -> tuple[bytes, int]:
    """Wait for the answer, and tell now and then how it goes."""
    import psutil

    parts: list[bytes] = []
    peak = 0
    process = psutil.Process(child.pid)
    tell_at = list(_TELL_AFTER)
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        while True:
            if selector.select(_LOOK_EVERY):
                part = answers.read(1 << 20)
                if not part:
                    return b"".join(parts), peak
                parts.append(part)
            with contextlib.suppress(psutil.Error):
                peak = max(peak, process.memory_info().rss)
            passed = time.monotonic() - began
            if passed > tell_at[0]:
                tell_at = tell_at[1:] or [tell_at[0] + 60]
                text = (
                    f"{name} runs in process {child.pid}: {format_seconds(passed)}, "
                    f"{format_bytes(peak)} so far."
                )
                emit(IsolatedProgress(text, function=name, seconds=passed, peak_bytes=peak))


def _death(name: str, code: int, peak: int) -> LegroomError:
    held = f"It held {format_bytes(peak)} of main memory when last looked at." if peak else ""
    if code < 0:
        number = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return OutOfMemoryError(
                f"The process of {name} was killed (SIGKILL), as the kernel does when main memory "
                f"runs out. {held} Train with less: a smaller batch, data that is read as "
                "it is needed, or more memory for the container."
            )
        return LegroomError(
            f"The process of {name} died by {number} before it returned. {held} Run the function "
            "here, without legroom.isolated, to see where."
        )
    return LegroomError(
        f"The process of {name} ended with exit code {code} before the function returned. {held} "
        "A function that calls os._exit() can't be brought back."
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """No process is left behind, whatever happened here."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _outputs(
    stack: contextlib.ExitStack,
) -> tuple[dict[str, Any], Callable[[subprocess.Popen[bytes]], None]]:
    """Where the child's output goes: this process's own, or through it where that is no file."""
    through = {
        name: stream
        for name, number in (("stdout", 1), ("stderr", 2))
        if not _is_file(stream := getattr(sys, name), number)
    }

    def relay(child: subprocess.Popen[bytes]) -> None:
        for name, stream in through.items():
            thread = threading.Thread(
                target=_copy, args=(getattr(child, name), stream), daemon=True
            )
            thread.start()
            stack.callback(thread.join, 5)

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return dict.fromkeys(through, subprocess.PIPE), relay


def _is_file(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (AttributeError, OSError, ValueError):
        return False


def _copy(source: IO[bytes], target: Any) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with source:
        while part := os.read(source.fileno(), 1 << 16):
            if target is not None:
                target.write(decoder.decode(part))
                target.flush()


def _guards_everything() -> bool:
    """Whether every Keras model of this process is guarded, so that the child's are too."""
    module = sys.modules.get("legroom.guarding.registry")
    return module is not None and module.registry.guards_everything


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    from legroom.report.screen.lines import LiveLines

    if has_listener(LiveLines):
        yield
    else:
        with listening(LiveLines()):
            yield
