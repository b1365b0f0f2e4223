"""Runs a script plainly and notes the peak of device memory; a child of ``legroom demo``.

Run as a file: ``measured.py NOTE LIMIT SCRIPT ARGS…``. With a limit above 0 the device is capped
first, as ``legroom.limit`` does it. Nothing is guarded.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run the script; whatever becomes of it, write down the peak and the device."""
    _, note, limit, *script_argv = sys.argv
    # The folder of this file has a `run.py` and others that no script should find.
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own]
    import legroom

    if int(limit):
        legroom.limit(int(limit))
    sys.argv[:] = script_argv
    try:
        runpy.run_path(script_argv[0], run_name="__main__")
    finally:
        from legroom.backends.base import current

        device = current().device
        facts = {"peak_bytes": device.peak_bytes(), "device": device.device_name()}
        Path(note).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
