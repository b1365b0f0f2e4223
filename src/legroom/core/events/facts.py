"""What only the report of a run reads: its memory, its machine, what was foreseen and found."""

from __future__ import annotations

import dataclasses
from typing import Any

from legroom.core.events.event import Event, WithPeak
from legroom.core.findings import Finding
from legroom.core.stages import Stage

__all__ = [
    "Found",
    "InputRead",
    "MachineDescribed",
    "MemorySampled",
    "NotPredicted",
    "Predicted",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySampled(WithPeak, name="memory"):
    """Memory was looked at; the most since it was last told.

    Attributes:
        device_bytes: Device memory in use.
        full: Whether next to nothing was left of it.
        host_bytes: The process's main memory.
        steps: The steps that this process has run.
        samples: The samples that it has trained on.
    """

    device_bytes: int | None = None
    full: bool = False
    host_bytes: int | None = None
    steps: int = 0
    samples: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineDescribed(Event, name="machine"):
    """The machine and the versions that a training runs with."""

    system: str = ""
    cores: int | None = None
    host_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    device: str = ""
    device_limit_bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted(Event, name="predicted"):
    """What was foreseen: a plan as a ``Plan`` writes itself, or an ``Estimate`` where none fits."""

    estimate: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotPredicted(Event, name="unpredicted"):
    """Nothing could be foreseen."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRead(Event, name="input"):
    """The stages of the input of a training."""

    stages: tuple[Stage, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Event, name="finding"):
    """The doctor saw something."""

    finding: Finding
