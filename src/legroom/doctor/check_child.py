"""The child process of ``legroom check script.py``: the script, watched.

Run as a file. What was found is written as JSON to the file named in ``sys.argv[1]``; the script
and its arguments follow.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run the script as ``__main__``, and write down what was found, however it ends."""
    _, answer, *script_argv = sys.argv
    # This folder is on the module path because the file is run from it; the script's is to be.
    sys.path[0] = str(Path(__file__).parents[2])
    from legroom.core.process.main_script import from_script_on, run_as_main
    from legroom.doctor.script import ScriptWatch

    watching = ScriptWatch()
    code: Any = 0
    watching.start()
    try:
        run_as_main(script_argv)
    except SystemExit as left:
        code = left.code
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what was found is written down first
        trace = from_script_on(error.__traceback__)
        traceback.print_exception(type(error), error, trace)
    findings = watching.stop()
    with open(answer, "w", encoding="utf-8") as file:
        json.dump([finding.to_dict() for finding in findings], file)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
