"""Stages of an input pipeline: what each hands on, and what it holds."""

from __future__ import annotations

import dataclasses

__all__ = ["Stage"]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of an input pipeline.

    Attributes:
        kind: ``"arrays"``, ``"files"``, ``"generator"``, ``"map"``, ``"interleave"``,
            ``"shuffle"``, ``"cache"``, ``"prefetch"``, ``"batch"``, ``"unbatch"``, ``"queue"`` or
            ``"other"``.
        element_bytes: What one element that it hands on weighs.
        elements: How many elements it holds at once; 0 for one that holds none, None if unknown.
        held_bytes: What it holds, where that is not elements of it (whole arrays).
        dtypes: The types of what it hands on.
        random: Whether it draws random numbers.
        to_file: Whether what it holds is on disk.
    """

    kind: str
    element_bytes: int = 0
    elements: int | None = 0
    held_bytes: int = 0
    dtypes: tuple[str, ...] = ()
    random: bool = False
    to_file: bool = False

    @property
    def bytes(self) -> int:
        """The main memory that the stage holds."""
        if self.to_file:
            return 0
        return self.held_bytes + (self.elements or 0) * self.element_bytes
