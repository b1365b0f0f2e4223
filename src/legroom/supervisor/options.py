"""What the parent of ``legroom run`` tells its child."""

from __future__ import annotations

import dataclasses

from legroom.core.records import Record

__all__ = ["Barred", "ChildOptions"]


@dataclasses.dataclass(frozen=True)
class Barred(Record):
    """A slice size that ended a process, and is not to be tried again.

    Attributes:
        training: The training it was in; None for a loop written by hand.
        subject: What it was a slice of: a batch, an evaluation batch, a prediction batch.
        slice_size: The size.
    """

    training: int | None
    subject: str
    slice_size: int


@dataclasses.dataclass(frozen=True)
class ChildOptions(Record):
    """The first argument of `legroom.supervisor.child`, as JSON.

    Attributes:
        receipts: The file descriptor to which the numbers of received signals are written.
        journal: Where the events go, if anywhere.
        exact: Whether models that can't be sliced exactly are left whole.
        folder: Where snapshots go, if anywhere.
        snapshot_every: Seconds between two of them.
        seed: What random numbers begin with where the script does not say.
        barred: Slice sizes that ended earlier processes.
        lean: Whether the host's memory has run out before: less is read ahead then.
        tried: Whether a training like this has run in this memory before, with whole batches.
        report: Whether a page is wanted: then plans and the input's stages are told too.
    """

    receipts: int
    journal: str | None = None
    exact: bool = False
    folder: str | None = None
    snapshot_every: float = 60.0
    seed: int | None = None
    barred: tuple[Barred, ...] = ()
    lean: bool = False
    tried: bool = False
    report: bool = False
