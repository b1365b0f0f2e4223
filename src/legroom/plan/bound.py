"""A plan and the model that it was made for."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from legroom.core.errors import LegroomError
from legroom.plan.ways import Plan

__all__ = ["apply_plan", "check_plan", "fingerprint", "register_applier"]

_applier: Callable[[Any, Plan], Any] | None = None


def register_applier(applier: Callable[[Any, Plan], Any]) -> None:
    """Say how a model is made to train by a plan: the guard does, which is a floor above."""
    global _applier
    _applier = applier


def fingerprint(model: Any) -> str:
    """What a plan is bound to: the model's weights by shape and type, not their values or names.

    Names are counted up in a process, and the same model has others the next time.
    """
    parts = [f"{tuple(variable.shape)} {variable.dtype}" for variable in model.weights]
    parts += [type(model).__name__, type(getattr(model, "optimizer", None)).__name__]
    parts += [type(layer).__name__ for layer in getattr(model, "layers", ())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def check_plan(plan: Plan, model: Any) -> None:
    """See that a plan is for this model, and of this version.

    Raises:
        LegroomError: If it is not.
    """
    here = importlib.metadata.version("legroom")
    if plan.legroom != here:
        raise LegroomError(
            f"This plan was made by legroom {plan.legroom}, and this is legroom {here}, which may "
            "predict and slice in another way. Make it anew with legroom.plan(…)."
        )
    if plan.fingerprint != fingerprint(model):
        raise LegroomError(
            f"This plan was made for another model, {plan.model!r}: layers, weights or optimizer "
            f"are not those of {model.name!r}. Make one for it with legroom.plan(model, …)."
        )


def apply_plan(plan: Plan, model: Any) -> Any:
    """Have a model train by a plan from now on.

    Returns:
        The same model.

    Raises:
        LegroomError: If the plan is for another model or version, or asks for what has to be
            decided when the model is built.
    """
    check_plan(plan, model)
    if plan.chosen.mixed_precision:
        raise LegroomError(
            "This plan needs mixed precision, which a model has from its making. Call "
            'keras.config.set_dtype_policy("mixed_float16") before it is built, and plan again.'
        )
    if _applier is None:
        importlib.import_module("legroom.guard")  # registers itself
    assert _applier is not None
    return _applier(model, plan)
