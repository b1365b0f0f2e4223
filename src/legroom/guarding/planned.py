"""Training by a plan: the guard begins with what it says, and goes on by what it sees."""

from __future__ import annotations

import dataclasses
from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.process.disabled import is_disabled
from legroom.guarding.options import GuardOptions, Start
from legroom.planning.bound import blocks_here, check_plan, register_applier
from legroom.planning.strategies import Plan

__all__ = ["guard_by_plan", "planned_options"]


def guard_by_plan(model: Any, plan: Plan) -> Any:
    """Guard a model, beginning with a plan."""
    from legroom.guarding.registry import registry

    if is_disabled():
        return model
    registry.add(model, planned_options(model, plan, GuardOptions()))
    return model


def planned_options(model: Any, plan: Plan, options: GuardOptions) -> GuardOptions:
    """What the user asked for, and a plan.

    Raises:
        LegroomError: If the plan is for another model or version, or a slice size was fixed, too.
    """
    if not isinstance(plan, Plan):
        raise LegroomError(
            "plan takes what legroom.plan(model, …) returns; from a file it is read by "
            f"legroom.Plan.from_json(text). Received: {type(plan).__name__}"
        )
    if options.slice_size is not None:
        raise LegroomError(
            "A plan begins with a slice size of its own. Give plan= or slice_size=, not both. "
            f"Received: slice_size={options.slice_size}"
        )
    check_plan(plan, model)
    chosen = plan.chosen
    return dataclasses.replace(
        options,
        memory=plan.budget_bytes if options.memory is None else options.memory,
        exact=options.exact or plan.exact,
        start=Start(
            plan.batch_size,
            chosen.slice_size or plan.batch_size,
            chosen.peak_bytes or 0,
            blocks_here(plan, model),
            chosen.ordered,
        ),
    )


register_applier(guard_by_plan)
