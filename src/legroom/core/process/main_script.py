"""A user's script, run as plain Python would run it: as ``__main__``."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Sequence

__all__ = ["from_script_on", "run_as_main"]


def run_as_main(argv: Sequence[str]) -> None:
    """Run a script in this process, with its ``__main__``, ``sys.argv`` and ``sys.path``.

    Whatever it raises comes out, SystemExit too.

    Args:
        argv: The script's path, as the user wrote it, and its arguments.
    """
    path = os.path.abspath(argv[0])
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = _main_module(path)
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def from_script_on(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The part of a traceback that plain Python would have: without the frames above the script.

    None for an error before the script's first line: one of its syntax.
    """
    while traceback is not None and traceback.tb_frame.f_code.co_filename != _path():
        traceback = traceback.tb_next
    return traceback


def _path() -> str | None:
    return getattr(sys.modules["__main__"], "__file__", None)


def _main_module(path: str) -> types.ModuleType:
    """A ``__main__`` as Python makes it for a script."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        **({"__annotations__": {}} if sys.version_info < (3, 14) else {}),
    )
    return module
