"""Hard caps on what JAX takes, for a process that is about to start.

On a GPU the share of the card that XLA takes is in its environment. On a CPU it is a limit to the
process's address space, put on by a call when JAX has started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from legroom.backends import address_space, patches
from legroom.backends.base import used_name
from legroom.backends.parts import LAYER
from legroom.core.errors import BadBudgetError
from legroom.core.units import MEMORY_VARIABLE, format_bytes

__all__ = ["cap_environment", "cap_imported", "cap_loop", "capped_bytes", "uses_gpu", "whole_bytes"]

_SMALLEST = 32 * 2**20
# The share of a card that XLA takes; read when it starts.
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def uses_gpu() -> bool:
    """Whether JAX will find a GPU here; asked without importing it, where it is not yet."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "default_backend"):
        return bool(jax.default_backend() == "gpu")
    from legroom.core.versions import installed
    from legroom.machine.gpu import list_gpus

    return bool(list_gpus()) and bool(list(installed(("jax-cuda12-plugin", "jax-cuda13-plugin"))))


def cap_environment(limit_bytes: int, *, keep_onednn: bool = False) -> dict[str, str]:
    """The environment that caps the device of a process about to start.

    Args:
        limit_bytes: The cap.
        keep_onednn: Of no meaning here: running out is an error with it, too.

    Raises:
        BadBudgetError: If JAX can't work with so little.
    """
    del keep_onednn
    if limit_bytes < _SMALLEST:
        raise BadBudgetError(
            f"JAX itself needs more than {format_bytes(limit_bytes)} to train. "
            f"Give at least {format_bytes(_SMALLEST)}."
        )
    if not uses_gpu():
        # Address space that the C library reserves for threads is none that a step can count on.
        return {MEMORY_VARIABLE: str(limit_bytes), "MALLOC_ARENA_MAX": "1"}
    from legroom.machine.memory import device_total

    return {_FRACTION: f"{min(1.0, limit_bytes / device_total()):.6f}"}


def cap_imported(limit_bytes: int) -> None:
    """Cap this process when its first layer is made: until then, other libraries may start."""
    if uses_gpu():
        return  # by its environment

    def capping(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if patches.has(__name__):
                patches.take_off(__name__)
                if used_name() == "jax":
                    from legroom.backends.jax.device.pool import default_pool

                    default_pool().set_limit(limit_bytes)
            original(self, *args, **kwargs)

        return init

    patches.put(__name__, LAYER, "__init__", capping)


def cap_loop() -> None:
    """Cap this process when its first step written by hand runs, where nothing else has.

    What is there by then counts.
    """
    asked = os.environ.get(MEMORY_VARIABLE, "")
    if not asked.isdigit() or uses_gpu() or address_space.is_limited():
        return
    import jax

    from legroom.backends.jax.device.pool import default_pool

    limit, held = int(asked), sum(x.nbytes for x in jax.live_arrays())
    if held >= limit:
        raise BadBudgetError(
            f"The arrays that this script has made take {format_bytes(held)}, and it may take "
            f"{format_bytes(limit)}. Give more, or make fewer before the first step."
        )
    default_pool().set_limit(limit - held)


def capped_bytes() -> int | None:
    """The cap this process was started with: on a CPU it is put on by a call."""
    return None


def whole_bytes() -> int | None:
    """What 100 % means in a size; None where that is a GPU that nobody tells about."""
    from legroom.machine.memory import device_limit, host_limit

    return device_limit() if uses_gpu() else host_limit()
