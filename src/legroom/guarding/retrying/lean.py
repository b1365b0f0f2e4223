"""When whole batches run lean: with what a failed step needs in the host's memory.

It costs the time to copy, and saves the gradients' memory: for models whose gradients do not fit
beside their state, or take more than slices would save.
"""

from __future__ import annotations

from legroom.backends.steps import BackendStep, Needs

__all__ = ["Lean"]

# The share of a budget that must be won for another try to be worth each second that it may cost.
_WORTH_A_SECOND = 0.001


class Lean:
    """Whether a step is lean, and whether it should be.

    Args:
        step: The step.

    Attributes:
        on: Whether it is.
    """

    def __init__(self, step: BackendStep) -> None:
        self.on = False
        self._step = step
        self._saved = 0
        self._too_much: set[int] = set()

    def is_needed(self, samples: int, size: int, free: int | None, needs: Needs | None) -> bool:
        """Whether there is no room for all the gradients, or slices of a size would save less."""
        if samples in self._too_much:
            return False
        saves = self._step.lean_saves
        if free is not None and saves and saves + self._step.unborn_bytes > free:
            return True
        return size < samples and self.pays(samples, needs)

    def pays(self, samples: int, needs: Needs | None) -> bool:
        """Whether it saves more than slices would."""
        if needs is None or samples in self._too_much:
            return False
        return self._step.lean_saves > needs(samples) - needs(1)

    def is_worth_a_try(self, samples: int, budget: int | None) -> bool:
        """Whether it was not tried, and saves enough for what another failure would cost."""
        worth = _WORTH_A_SECOND * self._step.oom_seconds * (budget or 0)
        return samples not in self._too_much and self._step.lean_saves > worth

    def begin(self) -> None:
        """Run whole batches lean from now on."""
        self._saved = self._step.lean_saves
        self._step.go_lean()
        self.on = True

    def end(self) -> None:
        """Run them as before."""
        self._step.go_lean(False)
        self.on = False

    def failed(self, samples: int) -> None:
        """Not even this was enough: batches of this size are not run lean again."""
        self._too_much.add(samples)
        self.end()

    def has_room_without(self, free: int | None) -> bool:
        """Whether what it saves is free now."""
        return free is not None and self._saved <= free
