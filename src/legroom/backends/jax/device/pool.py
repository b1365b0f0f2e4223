"""The memory JAX trains in: its limit, what is in use, the peak.

On a GPU, XLA's allocator keeps count of all that, and mostly takes its share of the card at once.
On a CPU it is the process's address space. What is for GPUs here was not verified on one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from legroom.backends import address_space
from legroom.backends.jax.device.scratch import scratch_bytes
from legroom.core.errors import BadBudgetError
from legroom.machine.budget import DeviceReading, judge
from legroom.machine.process import return_freed_pages

__all__ = ["GpuPool", "Pool", "default_pool"]

# What kernels take that pack nothing.
_SMALL_SCRATCH = 16 * 2**20
# Seconds in which another thread has given back the memory of a program.
_GIVEN_BACK_WITHIN, _BETWEEN_LOOKS = 0.3, 0.002
_PREALLOCATES = "XLA_PYTHON_CLIENT_PREALLOCATE"


def default_pool() -> Pool:
    """The memory that a training runs in if nobody says another one."""
    return _pool_of(jax.local_devices()[0])


@functools.cache
def _pool_of(device: Any) -> Pool:
    return Pool(device) if device.platform == "cpu" else GpuPool(device)


class Pool:
    """A CPU's memory, and what all devices have in common."""

    # What a program may take beyond what is known of it.
    unknown_share = 0.05

    def __init__(self, device: Any) -> None:
        self.device = device

    def device_name(self) -> str:
        """As legroom calls it everywhere: "CPU:0", "GPU:1"."""
        return "CPU:0"

    def card_number(self) -> int | None:
        """Which of the cards that CUDA shows it is on; None for a CPU."""
        return None

    def has_started(self) -> bool:
        """Whether its limit can be read without starting anything."""
        return True

    def has_limit(self) -> bool:
        """Whether there is a hard limit."""
        return address_space.is_limited()

    def limit_bytes(self) -> int | None:
        """The hard limit, where there is one that can be known."""
        return judge(self.read_device()).limit_bytes

    def is_certain(self) -> bool:
        """Whether the limit can be relied on; where not, a whole batch is tried first."""
        return True

    def in_use_bytes(self) -> int | None:
        """Bytes in use."""
        return address_space.in_use_bytes()

    def peak_bytes(self) -> int | None:
        """The most bytes in use since the last reset: nobody counts that on a CPU."""
        return None

    def reset_peak(self) -> None:
        """Reset the peak."""

    def read_device(self) -> DeviceReading:
        """All that can be read of it."""
        return DeviceReading(
            self.device_name(),
            cap_bytes=address_space.limit_bytes(),
            in_use_bytes=self.in_use_bytes(),
        )

    def set_limit(self, limit: int) -> None:
        """Cap it: the address space that JAX has taken by now, and so much more."""
        address_space.cap(limit, _start)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes can be had now."""
        return address_space.has_room(nbytes)

    def has_room_soon(self, nbytes: int) -> bool:
        """Whether so many bytes can be had when all is given back that nobody needs any more."""
        self.forget_cached()
        return _comes_true(lambda: self.has_room(nbytes))

    def see_given_back(self, left: int, taken: int) -> None:
        """Wait until a program has given its memory back: a moment after its results are there.

        What is read before that is taken for less than is free.

        Args:
            left: What should be in use then.
            taken: How much more it was meanwhile. Other threads take memory, too: most of it is
                enough.
        """
        if taken > _SMALL_SCRATCH * 2:
            _comes_true(lambda: (self.in_use_bytes() or 0) < left + taken // 2)

    def scratch_bytes(self, program: Any) -> int:
        """What the kernels of a compiled program take beyond what XLA knows, at most."""
        return _SMALL_SCRATCH + (scratch_bytes(program.as_text()) if self.has_limit() else 0)

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """A time in which XLA's compiler may take what it needs, as it could beside a GPU.

        It ends the process where it runs out.
        """
        return address_space.uncounted()

    def fails_late(self) -> bool:
        """Whether a program that runs out says so when its results are there, and not before."""
        return self.has_limit()

    def forget_cached(self) -> None:
        """Give back what the allocator keeps for later."""
        return_freed_pages()

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return 0.2


class GpuPool(Pool):
    """A GPU's memory, by XLA's allocator."""

    unknown_share = 0.0

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._peak_before = 0

    def _figure(self, name: str) -> int | None:
        figures = self.device.memory_stats() or {}
        return None if name not in figures else int(figures[name])

    def device_name(self) -> str:
        """As legroom calls it everywhere."""
        return f"GPU:{self.device.local_hardware_id or 0}"

    def card_number(self) -> int | None:
        """Which of the cards that CUDA shows it is on."""
        return int(self.device.local_hardware_id or 0)

    def has_limit(self) -> bool:
        """A card has an end."""
        return True

    def is_certain(self) -> bool:
        """Whether the limit can be relied on: not as long as other processes can take from it."""
        return os.environ.get(_PREALLOCATES, "true").lower() not in ("false", "0")

    def in_use_bytes(self) -> int | None:
        """Bytes in use."""
        return self._figure("bytes_in_use")

    def peak_bytes(self) -> int | None:
        """The most bytes in use, where that was after the last reset.

        XLA itself never resets it.
        """
        peak = self._figure("peak_bytes_in_use")
        return None if peak is None or peak <= self._peak_before else peak

    def reset_peak(self) -> None:
        """Reset the peak."""
        self._peak_before = self._figure("peak_bytes_in_use") or 0

    def read_device(self) -> DeviceReading:
        """All that can be read of it."""
        return DeviceReading(
            self.device_name(),
            allocator_bytes=self._figure("bytes_limit"),
            grows=not self.is_certain(),
            in_use_bytes=self.in_use_bytes(),
            peak_bytes=self._figure("peak_bytes_in_use"),
        )

    def set_limit(self, limit: int) -> None:
        """Too late: XLA's allocator keeps the size that it starts with."""
        raise BadBudgetError(
            "legroom.limit comes too late: JAX has taken its share of the GPU. Call it before "
            "keras or jax is imported, or use legroom run --memory."
        )

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes can be had now."""
        limit, in_use = self._figure("bytes_limit"), self.in_use_bytes()
        return limit is None or in_use is None or nbytes <= limit - in_use

    def has_room_soon(self, nbytes: int) -> bool:
        """The same: XLA's allocator has back at once what a program took."""
        return self.has_room(nbytes)

    def see_given_back(self, left: int, taken: int) -> None:
        """Wait for nothing: it is given back at once."""

    def scratch_bytes(self, program: Any) -> int:
        """What the kernels of a compiled program take beyond what XLA knows: nothing."""
        return 0

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """A time in which XLA's compiler may take what it needs: that is no memory of the card."""
        return contextlib.nullcontext()

    def fails_late(self) -> bool:
        """Whether a program that runs out says so when its results are there, and not before."""
        return False

    def forget_cached(self) -> None:
        """XLA's allocator keeps what it has."""

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return 0.1


def _comes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _GIVEN_BACK_WITHIN
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(_BETWEEN_LOOKS)
    return found


def _start() -> None:
    """Have JAX start all that it starts with a first step, whose address space is not ours."""
    shape = (64, 64)

    def step(weights: Any) -> Any:
        return ((jax.numpy.ones((256, 64)) @ weights) ** 2).sum()

    jax.block_until_ready(jax.jit(jax.value_and_grad(step))(np.ones(shape, np.float32)))
