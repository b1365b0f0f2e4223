"""What a step may use of the memory there is."""

from __future__ import annotations

from legroom.backends.base import Device

__all__ = ["StepBudget"]

# Running out of the host's memory is no error that could be answered: the kernel ends the process.
_OF_THE_HOST = 0.8


class StepBudget:
    """The limit of the device, or what the host can still give; the user's, if smaller.

    Args:
        pool: The device's memory.
        asked: What the user asked for; None for all there is.

    Attributes:
        nbytes: The budget; None before it was read, and where nobody knows it.
        told: The same for people: a limit that is not certain, too.
    """

    def __init__(self, pool: Device, asked: int | None) -> None:
        self._pool = pool
        self._asked = asked
        self._is_old = True
        self.nbytes: int | None = None
        self.told: int | None = None

    def look_again(self) -> None:
        """Read it again when it is next asked for."""
        self._is_old = True

    def free(self, in_use: int | None) -> int | None:
        """The bytes that are free for a step; None where nobody knows."""
        if self._is_old:
            self.nbytes = self.told = self._read(in_use)
            if self.told is None:
                self.told = self._pool.limit_bytes()
            self._is_old = False
        return None if self.nbytes is None else max(0, self.nbytes - (in_use or 0))

    def _read(self, in_use: int | None) -> int | None:
        """None where a device's limit is not certain.

        A batch is then tried whole, and cut only once it has really run out, which is quick on the
        devices that this is about.
        """
        from legroom.machine.memory import host_available

        if not self._pool.is_certain():
            return self._asked
        limit = self._pool.limit_bytes()
        if limit is None:
            limit = int(host_available() * _OF_THE_HOST) + (in_use or 0)
        return int(limit if self._asked is None else min(limit, self._asked))
