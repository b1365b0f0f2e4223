"""Hard caps on TensorFlow's device memory that must be set before TensorFlow starts.

On a CPU TensorFlow takes its memory from the system without a limit. With these variables the CPU
device uses the same allocator as a GPU does, with a limit, so that running out of memory is an
exception that can be caught. oneDNN has to go for that: with it, running out ends the process.
"""

from __future__ import annotations

import os
import sys

from legroom.core.errors import BadBudgetError
from legroom.core.units import MEMORY_VARIABLE, format_bytes
from legroom.core.versions import installed

__all__ = [
    "cap_environment",
    "cap_imported",
    "capped_bytes",
    "keeps_limit",
    "pool_grows",
    "uses_gpu",
    "whole_bytes",
]

# TensorFlow's own start (constants, the first kernels' scratch) needs some of this; below it
# nothing can be trained and the allocator's messages only confuse.
_SMALLEST = 32 * 2**20


def uses_gpu() -> bool:
    """Whether TensorFlow, when it starts, will find a GPU here (judged without starting it)."""
    from legroom.machine.gpu import list_gpus

    return bool(list_gpus()) and not _is_cpu_only()


def _is_cpu_only() -> bool:
    """Whether the TensorFlow that is installed is the one without GPU support."""
    return list(installed(("tensorflow", "tensorflow-cpu"))) == ["tensorflow-cpu"]


def cap_environment(limit_bytes: int, *, keep_onednn: bool = False) -> dict[str, str]:
    """The environment that caps the device of a process about to start.

    Args:
        limit_bytes: The cap.
        keep_onednn: Keep oneDNN on a CPU. It is about twice as fast, and running out of memory
            then ends the process instead of raising.

    Raises:
        BadBudgetError: If TensorFlow can't work with so little.
    """
    if limit_bytes < _SMALLEST:
        raise BadBudgetError(
            f"TensorFlow itself needs more than {format_bytes(limit_bytes)} to start. "
            f"Give at least {format_bytes(_SMALLEST)}."
        )
    variables = {MEMORY_VARIABLE: str(limit_bytes)}
    if uses_gpu():
        return variables  # the limit is set on the logical device, once TensorFlow is imported
    megabytes = str(max(1, limit_bytes // 2**20))
    variables |= {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": megabytes}
    if keep_onednn:
        variables |= {"TF_MKL_ALLOC_MAX_BYTES": str(limit_bytes)}
    else:
        variables |= {"TF_ENABLE_ONEDNN_OPTS": "0"}
    return variables


def cap_imported(limit_bytes: int) -> None:
    """Cap a GPU, which is capped by a call: not yet verified on one."""
    if uses_gpu():
        from legroom.backends.tensorflow.device import pool

        pool.set_limit(limit_bytes)


def capped_bytes() -> int | None:
    """The cap this process was started with, if any."""
    value = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB")
    if os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") in ("1", "true") and value:
        return int(value) * 2**20
    return None


def pool_grows(asked: bool) -> bool:
    """Whether a GPU's pool grows step by step: as the environment has it, or as was asked for."""
    return {"true": True, "false": False}.get(
        os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", ""), asked
    )


def keeps_limit() -> bool:
    """Whether a GPU's allocator keeps to its limit: CUDA's own takes whatever the card has."""
    return os.environ.get("TF_GPU_ALLOCATOR") != "cuda_malloc_async"


def whole_bytes() -> int | None:
    """What 100 % means in a size: all that a training in this process can have of its device.

    None where that is a GPU that nobody tells about.
    """
    from legroom.machine.memory import device_limit, host_limit

    if "tensorflow" in sys.modules:
        from legroom.backends.tensorflow.device import pool

        if pool.has_started():
            limit = pool.limit_bytes()
            return host_limit() if limit is None and pool.device_name() == "CPU:0" else limit
    return device_limit() if uses_gpu() else host_limit()
