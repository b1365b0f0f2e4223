"""Training by a plan: the guard starts with its slices and keeps to its budget."""

from __future__ import annotations

from typing import Any

from legroom.guard.api import guard
from legroom.plan.bound import register_applier
from legroom.plan.ways import Plan

__all__ = ["guard_by_plan"]


def guard_by_plan(model: Any, plan: Plan) -> Any:
    """Guard a model with the slices of a plan."""
    return guard(model, memory=plan.budget_bytes, slice_size=plan.slice_size)


register_applier(guard_by_plan)
