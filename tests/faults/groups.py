"""Control groups with little memory, in which the kernel really kills."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group with so little memory; skips where none can be made."""
    root = Path("/sys/fs/cgroup")
    folder = root / "memory" if (root / "memory").is_dir() else root
    group = folder / f"legroom-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error}): no real kernel kill to test")
    try:
        v1 = group / "memory.limit_in_bytes"
        try:
            (v1 if v1.exists() else group / "memory.max").write_text(str(limit))
        except OSError as error:
            pytest.skip(f"memory can't be limited here ({error}): no real kernel kill to test")
        yield group
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
