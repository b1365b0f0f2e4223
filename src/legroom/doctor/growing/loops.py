"""Sees the iterations of loops in a user's code, by following its lines.

Python tells a trace function about every line of the frames it is asked to follow. Going back in a
frame's bytecode is a loop that goes round. Only frames of the user's own files are followed, and
nothing inside a call that is known to be long (`fit`, a `tf.function`): see `pause`. A loop
that goes round thousands of times a second is left alone after a while.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import linecache
import os
import site
import sys
import sysconfig
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Loop", "LoopTracer", "is_users_file"]

_TOO_FAST = 2000  # rounds that take less than _FAST each: no training
_FAST = 1e-3


@dataclasses.dataclass(eq=False)
class Loop:
    """One run of one loop.

    Attributes:
        place: The loop's own line, ``file.py:12``.
        iteration: How many rounds are complete.
        start: Where it begins in its frame's bytecode.
        end: The furthest place from which it came back.
        began: When.
    """

    place: str
    iteration: int = 0
    start: int = 0
    end: int = 0
    began: float = dataclasses.field(default_factory=time.perf_counter)


class LoopTracer:
    """Calls back whenever a loop in the user's code goes round.

    Args:
        on_round: Called with the loop.
        on_end: Called with a loop that has ended.
    """

    def __init__(self, on_round: Callable[[Loop], None], on_end: Callable[[Loop], None]) -> None:
        self._on_round = on_round
        self._on_end = on_end
        self._loops: dict[types.FrameType, list[Loop]] = {}
        self._last: dict[types.FrameType, int] = {}
        self._ours: dict[types.CodeType, bool] = {}
        self._first: types.FrameType | None = None
        self.active = False

    def start(self, frame: types.FrameType | None = None) -> bool:
        """Begin to follow; False where someone else (a debugger) follows already.

        Args:
            frame: A frame that is running already, and shall be followed too.
        """
        if sys.gettrace() is not None:
            return False
        self.active = True
        if frame is not None and frame.f_trace is None:
            self._first = frame
            self._last[frame] = frame.f_lasti
            frame.f_trace = self._local
        sys.settrace(self._global)
        return True

    def stop(self) -> None:
        """Follow no more."""
        if not self.active:
            return
        self.active = False
        if sys.gettrace() == self._global:
            sys.settrace(None)
        if self._first is not None and self._first.f_trace == self._local:
            self._first.f_trace = None
        for loops in self._loops.values():
            for loop in reversed(loops):
                self._on_end(loop)
        self._loops.clear()
        self._last.clear()
        self._first = None

    def pause(self) -> bool:
        """Follow nothing for now: it is known what comes, and that it is long.

        Returns:
            Whether lines were being followed; pass it to `go_on`.
        """
        # Not a context manager: this is called around every step of a training.
        if not self.active or sys.gettrace() != self._global:
            return False
        sys.settrace(None)
        return True

    def go_on(self, paused: bool) -> None:
        """Follow again, after `pause`."""
        if paused and self.active:
            sys.settrace(self._global)

    def _global(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = _is_users(code)
        if not ours:
            return None
        self._last[frame] = -1
        return self._local

    def _local(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "line":
            here, last = frame.f_lasti, self._last.get(frame, -1)
            self._last[frame] = here
            if here <= last and not self._round(frame, here, last):
                return None
        elif event == "return":
            self._last.pop(frame, None)
            for loop in reversed(self._loops.pop(frame, [])):
                self._on_end(loop)
        return self._local

    def _round(self, frame: types.FrameType, here: int, last: int) -> bool:
        loops = self._loops.setdefault(frame, [])
        while loops and not (loops[-1].start == here or loops[-1].start < here <= loops[-1].end):
            self._on_end(loops.pop())
        if not loops or loops[-1].start != here:
            place = _place(frame.f_code.co_filename, frame.f_lineno)
            loops.append(Loop(place, start=here, end=last))
        loop = loops[-1]
        loop.end = max(loop.end, last)
        loop.iteration += 1
        self._on_round(loop)
        if loop.iteration < _TOO_FAST:
            return True
        if (time.perf_counter() - loop.began) / loop.iteration >= _FAST:
            return True
        self._ours[frame.f_code] = False
        frame.f_trace_lines = False
        return False


def _is_users(code: types.CodeType) -> bool:
    """Whether code is of the user's own files, and has loops that can be trainings."""
    if code.co_name in ("<lambda>", "<genexpr>"):
        return False
    generator = 0x20 | 0x80 | 0x200
    if code.co_flags & generator:
        return False
    return is_users_file(code.co_filename)


@functools.cache
def is_users_file(name: str) -> bool:
    """Whether a file is the user's own: not of Python, of an installed package or of legroom."""
    if name.startswith("<") and not name.startswith("<ipython"):
        return False
    path = os.path.abspath(name)
    own = str(Path(__file__).parents[2])
    paths = sysconfig.get_paths()
    libraries = [paths["stdlib"], paths["purelib"], paths["platlib"], own]
    libraries += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    return not any(path.startswith(folder + os.sep) for folder in libraries)


@functools.cache
def _place(filename: str, line: int) -> str:
    """The line of the loop that jumps back to a line: its own, or its first inner one."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse("".join(linecache.getlines(filename)))
        loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While, ast.AsyncFor))]
        own = [node.lineno for node in loops if node.lineno == line]
        inner = [node.lineno for node in loops if node.body[0].lineno == line]
        line = (own or inner or [line])[0]
    return f"{filename}:{line}"
