"""What the guard asks of a step, and every step on JAX answers alike."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from legroom.backends.jax.device import errors
from legroom.backends.jax.device.pool import Pool

__all__ = ["Answers"]


class Answers:
    """A step of one or more programs of XLA's.

    Attributes:
        pool: Where it runs.
    """

    pool: Pool

    def usable(self, *, planned: bool) -> float:
        """The share of what is free that a size above those that were seen may need."""
        return 1.0

    def tensors(self, samples: int) -> Sequence[tuple[str, int]]:
        """The largest tensors of a slice: not known."""
        return ()

    def put_in_order(self, samples: int) -> None:
        """XLA has an order of its own."""

    @property
    def lean_saves(self) -> int:
        """Whole batches take what they take without legroom."""
        return 0

    @property
    def unborn_bytes(self) -> int:
        """All state is there before the first step."""
        return 0

    def go_lean(self, lean: bool = True) -> None:
        """Whole batches take what they take without legroom."""

    def is_oom(self, error: BaseException) -> bool:
        """Whether an error means that memory ran out."""
        return errors.is_oom(error)

    def is_about_data(self, error: BaseException) -> bool:
        """Whether JAX raises such errors for what is in a batch: it does not look."""
        return False

    def describe(self, error: BaseException) -> tuple[str | None, int | None]:
        """Where it ran out, and how many bytes were asked for."""
        return None, errors.needed_bytes(error)

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return self.pool.oom_seconds

    def recover(self) -> None:
        """Free what a failed step left behind."""
        gc.collect()
        self.pool.forget_cached()
