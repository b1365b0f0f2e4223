"""Steps that are tried for the first time, written down before they run.

A step that ends the process tells nothing. Whoever looks for the reason finds in the journal what
had been begun, how much it should need and how much was free.
"""

from __future__ import annotations

from typing import Any

from legroom.backends.steps import BackendStep
from legroom.core.events import Attempted, AttemptPassed, emit
from legroom.snapshots.run import current_run

__all__ = ["Attempts"]


class Attempts:
    """A backend's step that tells what is tried for the first time.

    Args:
        step: The backend's step.
        subject: What its batches are, for messages.
    """

    def __init__(self, step: BackendStep, subject: str) -> None:
        self._step = step
        self._subject = subject
        self._training: int | None = None
        self._passed: set[tuple[int | None, int | None]] = set()
        self.guarded: Any = None  # whose predictions are written down, too

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def begin_call(self, training: int | None) -> None:
        """A call of Keras begins: in another training everything is tried for the first time."""
        self._training = training
        self._passed.clear()
        run = current_run()
        size = None if run is None else run.barred.get((training, self._subject))
        if size is not None and self.guarded is not None:
            self.guarded.bar(size)

    def has_passed(self, samples: int) -> bool:
        """Whether a whole batch of this size was tried, and went through."""
        return (samples, None) in self._passed

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run the step; the first time at each size, say so before and after."""
        samples = self._step.samples(data)
        key = samples, slice_size
        if key in self._passed:
            return self._step.run(data, slice_size)
        size = slice_size or samples
        facts: dict[str, Any] = {
            "training": self._training,
            "subject": self._subject,
            "batch_size": samples,
            "slice_size": size,
        }
        emit(Attempted(**facts, need_bytes=self._need(size), free_bytes=self._free()))
        outputs = self._step.run(data, slice_size)
        self._passed.add(key)
        emit(AttemptPassed(**facts))
        return outputs

    def _need(self, size: int | None) -> int | None:
        """What the step should need, where that is known."""
        needs = None if self.guarded is None else self.guarded.needs
        return None if needs is None or size is None else int(needs(size))

    def _free(self) -> int:
        """What is free for it."""
        pool = self._step.pool
        limit, in_use = pool.limit_bytes(), pool.in_use_bytes()
        if limit is not None:
            return max(0, limit - (in_use or 0))
        from legroom.machine.memory import host_available

        return host_available()
