"""The other side of ``legroom.isolated``: a fresh process that runs one function.

Run as a file. It imports nothing of legroom's before the parent's module path is in force, and no
framework at all: whatever the function needs, it brings along.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Read the function from a pipe, run it, and write what came of it to another."""
    read_from, write_to, parent = (int(word) for word in sys.argv[1:4])
    os.set_inheritable(write_to, False)
    with os.fdopen(read_from, "rb") as source:
        setup = pickle.load(source)
        sys.path[:] = setup["path"]
        if importlib.util.find_spec("legroom") is None:
            sys.path.append(str(Path(__file__).parents[2]))
        # Before that, an end of the parent is an end of the pipe.
        from legroom.core.process.lifeline import end_with

        end_with(parent)
        sys.argv[:] = [""]
        try:
            if setup["guard"]:
                from legroom.guarding import install_when_imported

                install_when_imported()
            function, args, kwargs = pickle.load(source)
            answer: tuple[str, Any] = ("returned", function(*args, **kwargs))
        except BaseException as error:
            answer = ("raised", (_sendable(error), _trace()))
    import cloudpickle

    from legroom.machine.process import peak_resident_bytes

    try:
        data = cloudpickle.dumps((*answer, peak_resident_bytes()))
    except Exception as error:
        data = cloudpickle.dumps(("unsendable", str(error), peak_resident_bytes()))
    sys.stdout.flush()
    with os.fdopen(write_to, "wb") as target:
        target.write(data)


def _trace() -> str:
    lines = traceback.format_exc().splitlines(keepends=True)
    return "".join(line for k, line in enumerate(lines) if __file__ not in lines[k])


def _sendable(error: BaseException) -> tuple[Any, ...]:
    """An error as what it can be made from over there: its kind, arguments and attributes.

    Not as itself: pickle calls an exception's class with its arguments, which are often others
    than its `__init__` takes.
    """
    import cloudpickle

    parts = (type(error), error.args, dict(vars(error)))
    try:
        pickle.loads(cloudpickle.dumps(parts))
    except Exception:
        from legroom.core.errors import LegroomError

        return LegroomError, (f"{type(error).__name__}: {error}",), {}
    return parts


if __name__ == "__main__":
    main()
