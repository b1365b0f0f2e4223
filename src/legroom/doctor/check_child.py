"""The child process of ``legroom check script.py``: the script, watched.

Run as a file. What was found is written as JSON to the file named in ``sys.argv[1]``; the script
and its arguments follow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the script as ``__main__``, and write down what was found, however it ends."""
    _, answer, *script_argv = sys.argv
    script = os.path.abspath(script_argv[0])
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    if importlib.util.find_spec("legroom") is None:
        sys.path.append(str(Path(__file__).parents[2]))
    sys.argv[:] = script_argv
    from legroom.doctor.script import ScriptWatch

    watching = ScriptWatch()
    code: Any = 0
    watching.start()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        code = left.code
    except BaseException:
        code = 1
        _show_error(script)
    findings = watching.stop()
    with open(answer, "w", encoding="utf-8") as file:
        json.dump([finding.to_dict() for finding in findings], file)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    sys.exit(code)


def _show_error(script: str) -> None:
    """The script's own traceback, without the frames above it."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main()
