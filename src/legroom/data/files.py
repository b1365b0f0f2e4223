"""Reading a part of a file into memory that is there already."""

from __future__ import annotations

from typing import Any

__all__ = ["read_at"]


def read_at(file: Any, place: int, out: Any) -> None:
    """Fill an array of bytes from a place of an unbuffered file.

    Raises:
        EOFError: If the file ends before.
    """
    file.seek(place)
    raw = memoryview(out)
    while raw:
        got = file.readinto(raw)
        if not got:
            raise EOFError(f"{file.name} has become shorter while it was read")
        raw = raw[got:]
