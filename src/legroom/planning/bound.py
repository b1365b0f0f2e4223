"""A plan and the model that it was made for."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import LegroomError
from legroom.planning.strategies import Plan

__all__ = [
    "apply_plan",
    "blocks_here",
    "check_plan",
    "fingerprint",
    "layer_names",
    "register_applier",
]

_applier: Callable[[Any, Plan], Any] | None = None


def register_applier(applier: Callable[[Any, Plan], Any]) -> None:
    """Say how a model is made to train by a plan: the guard does, which is a floor above."""
    global _applier
    _applier = applier


def fingerprint(model: Any) -> str:
    """What a plan is bound to: inputs, layers and weights by shape and type, and the optimizer.

    Not values, and not names: those are counted up in a process, and the same model has others
    the next time.
    """
    parts = [f"{tuple(variable.shape)} {variable.dtype}" for variable in model.weights]
    parts += [type(model).__name__, type(getattr(model, "optimizer", None)).__name__]
    parts += [f"{tuple(each.shape)} {each.dtype}" for each in getattr(model, "inputs", None) or ()]
    for layer in model._flatten_layers(include_self=False):
        parts.append(f"{type(layer).__name__} {layer.dtype_policy.name} {layer.trainable}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def layer_names(model: Any) -> tuple[str, ...]:
    """The layers that can be recomputed, in an order that does not depend on their names."""
    return tuple(name for chain in current().recompute.block_order(model) for name in chain)


def blocks_here(plan: Plan, model: Any) -> tuple[tuple[str, ...], ...]:
    """The blocks that a plan recomputes, by the names that the model's layers have here."""
    here = dict(zip(plan.layers, layer_names(model), strict=True)) if plan.layers else {}
    return tuple(tuple(here[name] for name in block) for block in plan.chosen.recompute)


def check_plan(plan: Plan, model: Any) -> None:
    """See that a plan is for this model and of this version, and can be followed.

    Raises:
        LegroomError: If it is not, or asks for what is decided when a model is built.
    """
    here = importlib.metadata.version("legroom")
    if plan.legroom != here:
        raise LegroomError(
            f"This plan was made by legroom {plan.legroom}, and this is legroom {here}, which may "
            "estimate and slice differently. Make a new one with legroom.plan(…)."
        )
    if plan.fingerprint != fingerprint(model):
        raise LegroomError(
            f"This plan was made for another model, {plan.model!r}: inputs, layers, weights or "
            f"optimizer are not those of {model.name!r}. Make one for this model with "
            "legroom.plan(model, …)."
        )
    if plan.chosen.mixed_precision:
        raise LegroomError(
            "This plan needs mixed precision, which is set before a model is built. Call "
            'keras.config.set_dtype_policy("mixed_float16") first, build the model, and plan again.'
        )


def apply_plan(plan: Plan, model: Any) -> Any:
    """Have a model train by a plan from now on.

    Returns:
        The same model.

    Raises:
        LegroomError: As `check_plan`.
    """
    if _applier is None:
        importlib.import_module("legroom.guarding.planned")  # registers itself
    assert _applier is not None
    return _applier(model, plan)
