"""Runs a script plainly and notes the peak of device memory; a child of ``legroom demo``.

Run as a file: ``measured.py NOTE LIMIT SCRIPT ARGS…``. With a limit above 0 the device is capped
first, as ``legroom.limit`` does it. Nothing is guarded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run the script; whatever becomes of it, write down the peak and the device."""
    _, note, limit, *script_argv = sys.argv
    # This folder is on the module path because the file is run from it; the script's is to be.
    sys.path[0] = str(Path(__file__).parents[2])
    import legroom
    from legroom.core.main_script import run_as_main

    if int(limit):
        legroom.limit(int(limit))
    try:
        run_as_main(script_argv)
    finally:
        from legroom.backends.base import current

        device = current().device
        facts = {"peak_bytes": device.peak_bytes(), "device": device.device_name()}
        Path(note).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
