"""The guard: training that survives running out of memory, and stays the same training."""

from __future__ import annotations

from legroom.guarding.api import fit, guard, install, limit, resumable, step
from legroom.guarding.importing import install_when_imported
from legroom.guarding.planned import guard_by_plan

__all__ = [
    "fit",
    "guard",
    "guard_by_plan",
    "install",
    "install_when_imported",
    "limit",
    "resumable",
    "step",
]
