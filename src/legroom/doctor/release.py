"""``legroom.release``: memory back between two trainings."""

from __future__ import annotations

import gc

from legroom.backends.base import imported, running
from legroom.core.released import Released
from legroom.machine.process import resident_bytes, return_freed_pages

__all__ = ["release"]


def release() -> Released:
    """Free what Keras and TensorFlow still hold of trainings that are over.

    To be called between trainings: at the end of a loop's body, or in a notebook before the next
    model. Models that you still hold go on working, and so do your own gradients, random seeds
    and settings of Keras. What you hold yourself (a model in a list, a tensor in a variable) is
    yours, and stays.

    XLA keeps the code it has compiled as long as the process lives: for many models compiled
    with ``jit_compile=True`` use `legroom.isolated`.

    Returns:
        What it freed.
    """
    before, device_before = resident_bytes(), _device_bytes()
    backends = imported()
    graphs = sum(backend.growth.release() for backend in backends)
    if not backends:
        gc.collect()
    return_freed_pages()
    device_after = _device_bytes()
    known = device_before is not None and device_after is not None
    return Released(
        graphs=graphs,
        host_bytes=before - resident_bytes(),
        device_bytes=(device_before or 0) - (device_after or 0) if known else None,
    )


def _device_bytes() -> int | None:
    backend = running() or next(iter(imported()), None)
    return None if backend is None else backend.device.in_use_bytes()
