"""Runs a script plainly and notes the peak of device memory; a child of ``legroom demo``.

Run as a file: ``measured.py NOTE LIMIT SCRIPT ARGS…``. With a limit above 0 the device is capped
first, as ``legroom.limit`` does it. Nothing is guarded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["main"]

_NO_CAP = 2**44


def main() -> None:
    """Run the script; whatever becomes of it, write down the peak and the device."""
    _, note, limit, *script_argv = sys.argv
    # This folder is on the module path because the file is run from it; the script's is to be.
    sys.path[0] = str(Path(__file__).parents[3])
    import legroom
    from legroom.backends.base import current
    from legroom.core.process.main_script import run_as_main
    from legroom.machine.process import fallen_bytes

    on_host = current().name in ("torch", "jax") and not current().caps.uses_gpu()
    # The address space is counted under a cap only, and that one is no cap.
    if int(limit) or on_host:
        legroom.limit(int(limit) or _NO_CAP)
    try:
        run_as_main(script_argv)
    finally:
        device = current().device
        peak = device.peak_bytes()
        if peak is None and (in_use := device.in_use_bytes()) is not None:
            peak = in_use + fallen_bytes()
        facts = {"peak_bytes": peak, "device": device.device_name()}
        Path(note).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
