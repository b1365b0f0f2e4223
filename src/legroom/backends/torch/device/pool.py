"""The memory PyTorch trains in: its limit, what is in use, the peak.

A GPU's allocator keeps count of all that. A CPU's does not: there the memory is the process's
address space, which the kernel counts and can limit, so that running out is an error that can be
caught.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from legroom.backends import address_space
from legroom.machine.budget import DeviceReading, judge
from legroom.machine.process import return_freed_pages

__all__ = ["CudaPool", "MpsPool", "Pool", "default_device", "pool_of"]

_cap: int | None = None


def default_device() -> torch.device:
    """The device that a training runs on if nobody says another one."""
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() == "torch":
        from keras.src.backend.torch.core import get_device

        return torch.device(get_device())
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def pool_of(device: torch.device) -> Pool:
    """The memory of a device."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _pool(device)


@functools.cache
def _pool(device: torch.device) -> Pool:
    return {"cuda": CudaPool, "mps": MpsPool}.get(device.type, Pool)(device)


class Pool:
    """A CPU's memory, and what all devices have in common."""

    def __init__(self, device: torch.device) -> None:
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
        """Whether the limit can be relied on; where not, a whole batch is tried first.

        Address space is not memory: what is left of it says little about what fits in it.
        """
        return not self.has_limit()

    def in_use_bytes(self) -> int | None:
        """Bytes in use."""
        return address_space.in_use_bytes()

    def peak_bytes(self) -> int | None:
        """The most bytes in use since the last reset: nobody counts that on a CPU."""
        return None

    def reset_peak(self) -> None:
        """Start counting the peak anew."""

    def peak_apart(self) -> contextlib.AbstractContextManager[None]:
        """Count the peak of what is inside apart."""
        return contextlib.nullcontext()

    def read_device(self) -> DeviceReading:
        """All that can be read of it."""
        return DeviceReading(
            self.device_name(),
            cap_bytes=address_space.limit_bytes(),
            in_use_bytes=self.in_use_bytes(),
        )

    def set_limit(self, limit: int) -> None:
        """Cap it: the address space that PyTorch has taken by now, and so much more."""
        address_space.cap(limit, _start_threads)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes can be had now: they are taken, and given back."""
        try:
            torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except RuntimeError:
            return False
        return True

    def forget_cached(self) -> None:
        """Give back what the allocator keeps for later."""
        return_freed_pages()

    def seeds(self) -> torch.Tensor | None:
        """Where the device's generator of random numbers is."""
        return torch.get_rng_state()

    def set_seeds(self, state: torch.Tensor) -> None:
        """Put it back there."""
        torch.set_rng_state(state)

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return 0.2


class CudaPool(Pool):
    """A GPU's memory, by PyTorch's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._seen = 0  # a peak before the allocator's own count began anew

    def device_name(self) -> str:
        """As legroom calls it everywhere."""
        return f"GPU:{self.device.index}"

    def card_number(self) -> int | None:
        """Which of the cards that CUDA shows it is on."""
        return self.device.index

    def has_started(self) -> bool:
        """Whether CUDA has."""
        return bool(torch.cuda.is_initialized())

    def has_limit(self) -> bool:
        """A card has an end."""
        return True

    def is_certain(self) -> bool:
        """Whether the limit can be relied on: not as long as other processes can take from it."""
        return judge(self.read_device()).certain

    def in_use_bytes(self) -> int | None:
        """Bytes in use."""
        return int(torch.cuda.memory_allocated(self.device))

    def peak_bytes(self) -> int | None:
        """The most bytes in use since the last reset."""
        return max(self._seen, int(torch.cuda.max_memory_allocated(self.device)))

    def reset_peak(self) -> None:
        """Start counting the peak anew."""
        self._seen = 0
        torch.cuda.reset_peak_memory_stats(self.device)

    @contextlib.contextmanager
    def peak_apart(self) -> Iterator[None]:
        """Count the peak of what is inside apart; afterwards it is the higher one of the two."""
        before, self._seen = self.peak_bytes() or 0, 0
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            yield
        finally:
            self._seen = before

    def read_device(self) -> DeviceReading:
        """All that can be read of it.

        What the allocator has reserved stands for its peak: it has that much, whatever others do.
        """
        free, total = torch.cuda.mem_get_info(self.device)
        share = 1.0
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            share = torch.cuda.get_per_process_memory_fraction(self.device)
        elif _cap is not None:
            share = min(1.0, _cap / total)
        return DeviceReading(
            self.device_name(),
            allocator_bytes=int(share * total),
            grows=True,
            in_use_bytes=self.in_use_bytes(),
            peak_bytes=int(torch.cuda.memory_reserved(self.device)),
            cap_bytes=_cap,
            card_bytes=total,
            free_bytes=free,
        )

    def set_limit(self, limit: int) -> None:
        """Cap what the allocator takes, on every card."""
        global _cap
        torch.cuda.empty_cache()  # what is kept for later may be more than the cap
        for number in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(number).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), number)
        _cap = limit

    def forget_cached(self) -> None:
        """Give back what the allocator keeps for later."""
        torch.cuda.empty_cache()

    def seeds(self) -> torch.Tensor | None:
        """Where the device's generator of random numbers is."""
        return torch.cuda.get_rng_state(self.device)

    def set_seeds(self, state: torch.Tensor) -> None:
        """Put it back there."""
        torch.cuda.set_rng_state(state, self.device)

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return 0.05


class MpsPool(Pool):
    """The memory of an Apple GPU. Not verified on one."""

    def device_name(self) -> str:
        """As legroom calls it everywhere."""
        return "GPU:0"

    def has_limit(self) -> bool:
        """A card has an end."""
        return True

    def is_certain(self) -> bool:
        """It shares the host's memory with everybody else."""
        return False

    def in_use_bytes(self) -> int | None:
        """Bytes in use."""
        return int(torch.mps.current_allocated_memory())

    def read_device(self) -> DeviceReading:
        """All that can be read of it."""
        return DeviceReading(
            self.device_name(),
            allocator_bytes=int(torch.mps.recommended_max_memory()),
            grows=True,
            in_use_bytes=self.in_use_bytes(),
            cap_bytes=_cap,
        )

    def set_limit(self, limit: int) -> None:
        """Cap what the allocator takes."""
        global _cap
        torch.mps.set_per_process_memory_fraction(limit / torch.mps.recommended_max_memory())
        _cap = limit

    def forget_cached(self) -> None:
        """Give back what the allocator keeps for later."""
        torch.mps.empty_cache()

    def seeds(self) -> torch.Tensor | None:
        """Where the device's generator of random numbers is."""
        return torch.mps.get_rng_state()

    def set_seeds(self, state: torch.Tensor) -> None:
        """Put it back there."""
        torch.mps.set_rng_state(state)


def _start_threads() -> None:
    """Have PyTorch start all that it starts with a first step, whose address space is not ours."""
    weights = torch.zeros(64, 64, requires_grad=True)
    picture = torch.zeros(2, 3, 16, 16)
    kernel = torch.zeros(8, 3, 3, 3, requires_grad=True)
    made: Any = (torch.zeros(256, 64) @ weights).relu().sum()
    made = made + torch.nn.functional.conv2d(picture, kernel).sum()
    made.backward()
