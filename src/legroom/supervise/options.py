"""What the parent of ``legroom run`` tells its child."""

from __future__ import annotations

import dataclasses

from legroom.core.records import Record

__all__ = ["ChildOptions"]


@dataclasses.dataclass(frozen=True)
class ChildOptions(Record):
    """The first argument of :mod:`legroom.supervise.child`, as JSON.

    Attributes:
        receipts: The file descriptor to which the numbers of received signals are written.
        journal: Where the events go, if anywhere.
        exact: Whether models that can't be sliced exactly are left whole.
    """

    receipts: int
    journal: str | None = None
    exact: bool = False
