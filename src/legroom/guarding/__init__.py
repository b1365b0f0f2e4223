"""The guard: training that survives running out of memory, and stays the same training."""

from __future__ import annotations

from legroom.guarding.api import fit, guard, install, limit, resumable, step
from legroom.guarding.importing import install_when_imported

__all__ = [
    "fit",
    "guard",
    "install",
    "install_when_imported",
    "limit",
    "resumable",
    "step",
]
