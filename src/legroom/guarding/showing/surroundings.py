"""The machine and the versions that a training ran with, for its report."""

from __future__ import annotations

import os
import platform
from typing import Any

from legroom.core.events import MachineDescribed
from legroom.core.versions import installed

__all__ = ["describe_machine"]

_PACKAGES = ("legroom", "keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "numpy")


def describe_machine(pool: Any) -> MachineDescribed:
    """What a reader of a report asks for first.

    Args:
        pool: The memory that is trained in.
    """
    from legroom.machine.cgroup import read_cgroup
    from legroom.machine.gpu import list_gpus
    from legroom.machine.host import read_host

    cgroup = read_cgroup()
    return MachineDescribed(
        system=platform.platform(),
        cores=os.cpu_count(),
        host_bytes=read_host().total_bytes,
        cgroup_limit_bytes=None if cgroup is None else cgroup.limit_bytes,
        gpus=tuple({"name": gpu.name, "total_bytes": gpu.total_bytes} for gpu in list_gpus()),
        versions={"python": platform.python_version(), **installed(_PACKAGES)},
        device=pool.device_name() if hasattr(pool, "device_name") else "",
        device_limit_bytes=pool.limit_bytes(),
    )
