"""Diagnosis: what a text or an exception says about memory, and what to do."""

from __future__ import annotations

import dataclasses

from legroom.core.records import Record

__all__ = ["Diagnosis", "Remedy"]


@dataclasses.dataclass(frozen=True)
class Remedy(Record):
    """One thing to do.

    Attributes:
        text: What, in a sentence.
        command: A command to run, if that is how it is done.
        code: A line or two of Python, if that is how it is done.
        bytes_saved: What it saves at least, as far as the text tells; None where it does not.
        exact: Whether the training stays the same training.
        predicted: Whether the saving was predicted from the model instead of read from the text.
    """

    text: str
    command: str | None = None
    code: str | None = None
    bytes_saved: int | None = None
    exact: bool = True
    predicted: bool = False


@dataclasses.dataclass(frozen=True)
class Diagnosis(Record):
    """What was read. What the text does not say is None, never guessed.

    Attributes:
        is_oom: Whether memory ran out. None: the text leaves it open (a bare segmentation fault).
        fatal: Whether the work was lost.
        framework: ``tensorflow``, ``jax``, ``torch``, ``numpy`` or ``system``.
        where: ``device``, ``host`` or ``disk``.
        device: Which, as ``GPU:0``.
        requested_bytes: The allocation that failed.
        shape: The shape of the tensor that it was for.
        dtype: The type of its elements.
        op: The op that asked for it.
        layer: The layer that the op belongs to, read from the op's name or from Keras's message.
        limit_bytes: What could be used at most.
        in_use_bytes: What was in use.
        largest_free_bytes: The largest free piece.
        fragmented: Whether there was room enough, in pieces too small.
        growth: Whether several failures show memory that is not given back.
        story: The whole in plain sentences, one a line.
        remedies: What to do, the most useful first.
        finding: The page of ``report/pages`` that tells more.
        failures: How many times memory ran out in this text.
        first_error: The line that tells the failure it began with.
        final_error: The line that tells what ended it, where that is another.
    """

    is_oom: bool | None = False
    fatal: bool = False
    framework: str | None = None
    where: str | None = None
    device: str | None = None
    requested_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    op: str | None = None
    layer: str | None = None
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    largest_free_bytes: int | None = None
    fragmented: bool | None = None
    growth: bool | None = None
    story: str = ""
    remedies: tuple[Remedy, ...] = ()
    finding: str | None = None
    failures: int = 0
    first_error: str | None = None
    final_error: str | None = None
