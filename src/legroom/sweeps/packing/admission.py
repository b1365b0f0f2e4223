"""Which trial starts next, and with how much memory. Pure.

The caps of the trials that run never add up to more than there is. Large trials go first, because
small ones fill the gaps beside them; and a trial that others have overtaken too often is waited
for, so that each one starts some day.
"""

from __future__ import annotations

import dataclasses

from legroom.sweeps.packing.needs import Cap

__all__ = ["Admission", "Grant", "threads_for"]

# So many later ones may overtake a trial that fits beside none of those that run.
_PATIENCE = 32


@dataclasses.dataclass(frozen=True)
class Grant:
    """A trial that may start.

    Attributes:
        number: The trial.
        nbytes: Its cap.
    """

    number: int
    nbytes: int


@dataclasses.dataclass
class _Waiting:
    cap: Cap
    overtaken: int = 0


class Admission:
    """Hands out memory to trials, and takes it back.

    Args:
        memory: The bytes that all of them share.
        workers: How many may run at once.
    """

    def __init__(self, memory: int, workers: int) -> None:
        self.memory = memory
        self.workers = workers
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """What is not handed out."""
        return self.memory - sum(self._running.values())

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._running)

    def add(self, number: int, cap: Cap) -> None:
        """Have a trial wait; or change what a waiting one is to get.

        Raises:
            ValueError: If it runs, or would never fit.
        """
        if number in self._running or cap.least > self.memory:
            raise ValueError(f"Trial {number} can't wait for {cap} of {self.memory} bytes.")
        known = self._waiting.get(number)
        self._waiting[number] = _Waiting(cap, known.overtaken if known else 0)

    def next(self, room: int | None = None) -> Grant | None:
        """The trial that starts now; None if none can.

        Args:
            room: The bytes that there really are for it, where that may be less than what is free
                here. With none running there is nothing to wait for, and it does not count.
        """
        if len(self._running) >= self.workers:
            return None
        free = self.free_bytes
        if room is not None and self._running:
            free = min(free, room)
        order = sorted(self._waiting, key=lambda number: (-self._waiting[number].cap.least, number))
        impatient = [n for n in order if self._waiting[n].overtaken >= _PATIENCE]
        for number in [min(impatient)] if impatient else order:
            cap = self._waiting[number].cap
            if cap.least <= free:
                del self._waiting[number]
                for other, waits in self._waiting.items():
                    waits.overtaken += other < number
                self._running[number] = min(cap.nbytes, free)
                return Grant(number, self._running[number])
        return None

    def end(self, number: int) -> None:
        """A trial has ended, or was never started: its memory is free again."""
        del self._running[number]


def threads_for(cores: int, workers: int, memory: int, cap: int) -> int:
    """The threads that a trial computes with: its part of the cores.

    Args:
        cores: The machine's.
        workers: How many trials run at once, at most.
        memory: The bytes that all of them share.
        cap: The trial's.
    """
    at_once = max(1, min(workers, memory // max(1, cap)))
    return max(1, cores // at_once)
