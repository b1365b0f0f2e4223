"""What a user asks of the guard."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import LegroomError
from legroom.core.units import parse_size

__all__ = ["GuardOptions", "Start"]


@dataclasses.dataclass(frozen=True)
class Start:
    """How a training by a plan begins. From there on the guard goes by what it sees.

    Attributes:
        batch_size: The batches it was planned for.
        slice_size: The size of its slices; the batch size for the whole batch.
        peak_bytes: What it was predicted to take: with less than that, the plan does not hold.
        recompute: Blocks of layers that are computed again for their gradients.
        ordered: Whether the ops run in an order that needs little memory.
    """

    batch_size: int
    slice_size: int
    peak_bytes: int
    recompute: tuple[tuple[str, ...], ...] = ()
    ordered: bool = False


@dataclasses.dataclass(frozen=True)
class GuardOptions:
    """How a model or a step is to be guarded.

    Attributes:
        memory: A budget in bytes to plan by; slices are chosen to stay under it.
        exact: Never slice what slices would change.
        slice_size: A slice size fixed by hand.
        start: Where a plan has the training steps begin.
    """

    memory: int | None = None
    exact: bool = False
    slice_size: int | None = None
    start: Start | None = None

    @classmethod
    def read(
        cls, memory: str | int | None = None, exact: bool = False, slice_size: Any = None
    ) -> GuardOptions:
        """Check what the user gave.

        Raises:
            BadBudgetError: If the budget can't be read.
            LegroomError: If the slice size is no whole number above zero.
        """
        budget = None
        if memory is not None:
            budget = parse_size(memory, whole=current().caps.whole_bytes())
        if slice_size is not None:
            try:
                if isinstance(slice_size, bool) or operator.index(slice_size) < 1:
                    raise TypeError
            except TypeError:
                raise LegroomError(
                    "slice_size must be a whole number of samples, 1 or more. "
                    f"Received: slice_size={slice_size!r}"
                ) from None
        return cls(budget, bool(exact), slice_size)
