"""Answers that were given before, kept on disk.

What a step needs depends on the model, the versions, this machine and the options alone. So a
question that was asked before is answered in no time, in another process too.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from legroom.core.files import write_atomically
from legroom.core.records import Record
from legroom.core.versions import installed

__all__ = ["FOLDER_VARIABLE", "kept_answer"]

# The folder for answers; "off" for none.
FOLDER_VARIABLE = "LEGROOM_CACHE"
_MOST_ANSWERS = 200
_PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "torch", "jax", "numpy")
# Settings of the frameworks that change what a step allocates.
_SETTINGS = ("TF_", "XLA_", "KERAS_", "OMP_", "CUDA_VISIBLE_DEVICES")

R = TypeVar("R", bound=Record)


def kept_answer(
    kind: type[R], question: dict[str, Any] | None, make: Callable[[], R], *, again: bool = False
) -> tuple[R, datetime.datetime | None]:
    """The answer to a question: the one kept from before, or a new one, which is kept.

    Args:
        kind: What an answer is.
        question: All that the answer depends on, beside versions and machine; None where not all
            of it can be written down, so that nothing is kept.
        make: Find the answer.
        again: Find it even if one was kept.

    Returns:
        The answer, and when it was found if it was not now.
    """
    folder = _folder()
    if question is None or folder is None:
        return make(), None
    file = folder / f"{_key(kind, question)}.json"
    if not again:
        # One that can't be read, or that an older legroom wrote, is no answer.
        with contextlib.suppress(Exception):
            found = kind.from_json(file.read_text())
            asked = datetime.datetime.fromtimestamp(file.stat().st_mtime)
            return found, asked
    answer = make()
    # A full or read-only disk is no reason to fail.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, answer.to_json().encode())
        _remove_oldest(folder)
    return answer, None


def _folder() -> Path | None:
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return None if chosen == "off" else Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(caches) / "legroom" / "answers"


def _key(kind: type, question: dict[str, Any]) -> str:
    about = {
        "kind": kind.__name__,
        "question": question,
        "legroom": _own_state(),
        "packages": installed(_PACKAGES),
        "python": sys.version,
        "machine": [platform.machine(), os.cpu_count()],
        "settings": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)
        },
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _own_state() -> str:
    """Which legroom this is: its version, and when its files last changed, for who works on it."""
    files = Path(__file__).parents[1].rglob("*.py")
    return f"{installed(['legroom'])} {max(file.stat().st_mtime_ns for file in files)}"


def _remove_oldest(folder: Path) -> None:
    answers = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in answers[:-_MOST_ANSWERS]:
        file.unlink(missing_ok=True)
