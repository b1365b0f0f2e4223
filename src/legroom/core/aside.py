"""Saying that a part of legroom stands aside, where it can't do what it is there for.

Whatever trains without legroom trains with it: what can't be put in place, or fails by itself, is
left out with one sentence.
"""

from __future__ import annotations

import sys

from legroom.core.events import Note, emit, is_heard

__all__ = ["in_a_line", "say_left_out"]

_said: set[str] = set()


def say_left_out(what: str, why: str) -> None:
    """Say once in a process that something is left out.

    Args:
        what: What is left out, and what becomes of the training, as a sentence.
        why: The reason.
    """
    if what not in _said:
        _said.add(what)
        emit(Note(f"{what}: {why}", left_out=True))
        if not is_heard():
            print(f"legroom: {what}: {why}", file=sys.stderr)


def in_a_line(error: BaseException) -> str:
    """An error that nobody expected, for the end of a sentence."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
