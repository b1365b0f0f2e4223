"""Trial: one training of a sweep, as it ended."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, Literal

from legroom.core.records import Record

__all__ = ["Answer", "Status", "Trial", "config_digest", "readable", "trial_seed"]

Status = Literal["finished", "failed", "cannot_fit", "timed_out"]


@dataclasses.dataclass(frozen=True)
class Trial(Record):
    """One training of a sweep.

    Attributes:
        number: Its place among the configs, from 0.
        config: What it was trained with.
        status: ``"finished"``; ``"failed"``, ``"cannot_fit"`` or ``"timed_out"``, with the error.
        result: What `train` returned. Numbers, texts, lists and dicts stay what they are, arrays
            and tensors become lists, a Keras `History` its dict; of anything else the text is kept.
        error: What went wrong, and what to do.
        seconds: How long it ran, all of its starts together.
        peak_bytes: The most device memory that was in use, where that is known.
        cap_bytes: The cap that it had in the end.
        starts: How often it was started: once, unless it was killed or needed more memory.
        seed: What its random numbers begin with, where `train` itself does not say.
        folder: Where its log and its journal are.
        where: The machine that it ran on, in a sweep on several.
    """

    number: int
    config: Any
    status: Status
    result: Any = None
    error: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None
    cap_bytes: int | None = None
    starts: int = 1
    seed: int = 0
    folder: str = ""
    where: str = ""

    @property
    def log(self) -> Path:
        """The file with what it printed."""
        return Path(self.folder) / "log.txt"


@dataclasses.dataclass(frozen=True)
class Answer(Record):
    """What a trial's process says at its end.

    Attributes:
        outcome: ``"returned"`` or ``"raised"``.
        result: What was returned.
        error: What was raised, in a line.
        trace: Where.
        short: Whether it was for lack of memory.
        need_bytes: What it would need at least, where that is known.
        story: What that error of memory means.
        host_peak: The most main memory that the process has held.
    """

    outcome: str
    result: Any = None
    error: str = ""
    trace: str = ""
    short: bool = False
    need_bytes: int | None = None
    story: str = ""
    host_peak: int = 0


def trial_seed(seed: int, number: int) -> int:
    """What the random numbers of a trial begin with: its own, and the same every time."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


def readable(value: Any) -> Any:
    """A value as JSON can hold it, as much of it as that can be."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, dict):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [readable(item) for item in value]
    if type(value).__name__ == "History" and isinstance(getattr(value, "history", None), dict):
        return readable(value.history)
    if hasattr(value, "detach"):  # a tensor of PyTorch's, wherever it is
        value = value.detach().cpu()
    for name in ("tolist", "numpy"):  # arrays and scalars of NumPy's, tensors
        if callable(method := getattr(value, name, None)):
            try:
                return readable(method())
            except Exception:  # something else with a method of that name
                break
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: readable(getattr(value, field.name)) for field in fields}
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def config_digest(config: Any) -> str:
    """What tells a config from others."""
    text = json.dumps(readable(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
