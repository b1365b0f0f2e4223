"""Hard caps on what PyTorch takes, for a process that is about to start.

PyTorch is capped by calls, not by its environment: on a GPU by its allocator's own limit, on a CPU
by a limit to the process's address space, which is put on when PyTorch has started its threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from legroom.backends import patches
from legroom.backends.base import used_name
from legroom.backends.parts import TORCH_MODULE
from legroom.core.errors import BadBudgetError
from legroom.core.units import MEMORY_VARIABLE, format_bytes

__all__ = ["cap_environment", "cap_imported", "capped_bytes", "uses_gpu", "whole_bytes"]

_SMALLEST = 32 * 2**20


def uses_gpu() -> bool:
    """Whether PyTorch will find a GPU here; asked without importing it, where it is not yet."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda"):
        return bool(torch.cuda.is_available())
    from legroom.machine.gpu import list_gpus

    return bool(list_gpus())


def cap_environment(limit_bytes: int, *, keep_onednn: bool = False) -> dict[str, str]:
    """The environment that has legroom cap a process as soon as PyTorch is there.

    Args:
        limit_bytes: The cap.
        keep_onednn: Of no meaning here: running out is an error with it, too.

    Raises:
        BadBudgetError: If PyTorch can't work with so little.
    """
    del keep_onednn
    if limit_bytes < _SMALLEST:
        raise BadBudgetError(
            f"PyTorch itself needs more than {format_bytes(limit_bytes)} to train. "
            f"Give at least {format_bytes(_SMALLEST)}."
        )
    # Address space that the C library reserves for each thread is none that a step can count on.
    return {MEMORY_VARIABLE: str(limit_bytes), **({} if uses_gpu() else {"MALLOC_ARENA_MAX": "1"})}


def cap_imported(limit_bytes: int) -> None:
    """Cap this process when its first module is made.

    Not at once: a script may import PyTorch for its data, and another framework later, which would
    not find the address space that it needs to start.
    """

    def capping(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if patches.has(__name__):
                patches.take_off(__name__)
                if used_name() == "torch":
                    from legroom.backends.torch.device.pool import default_device, pool_of

                    pool_of(default_device()).set_limit(limit_bytes)
            original(self, *args, **kwargs)

        return init

    patches.put(__name__, TORCH_MODULE, "__init__", capping)


def capped_bytes() -> int | None:
    """The cap this process was started with: it is put on by a call."""
    return None


def whole_bytes() -> int | None:
    """What 100 % means in a size; None where that is a GPU that nobody tells about."""
    from legroom.machine.memory import device_limit, host_limit

    return device_limit() if uses_gpu() else host_limit()
