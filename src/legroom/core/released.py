"""What was let go between two trainings."""

from __future__ import annotations

import dataclasses

from legroom.core.records import Record
from legroom.core.units import format_bytes

__all__ = ["Released"]


@dataclasses.dataclass(frozen=True)
class Released(Record):
    """What ``legroom.release()`` freed.

    Attributes:
        graphs: Graphs of trainings that had been held, with their weights and slots.
        host_bytes: Main memory that this process holds less.
        device_bytes: Device memory in use less; None where the allocator keeps no count.
    """

    graphs: int = 0
    host_bytes: int = 0
    device_bytes: int | None = None

    def _as_text(self) -> str:
        parts = [f"{format_bytes(self.host_bytes)} of main memory"]
        if self.device_bytes is not None:
            parts.append(f"{format_bytes(self.device_bytes)} of device memory")
        return f"freed {' and '.join(parts)} ({self.graphs} graphs)"
