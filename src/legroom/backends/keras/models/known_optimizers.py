"""Keras's own optimizers: what is known of their updates, where nobody has overridden it."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

__all__ = ["builds_only_slots", "inner_optimizer", "updates_by_variable"]

# Keras's own that update each variable by itself, whatever comes before or after it. Others keep
# state that all variables share (Nadam, ScheduleFreeAdamW), or decay in their own manner (Muon).
_BY_VARIABLE = ("SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Ftrl", "Lamb",
                "Lion", "Adafactor")  # fmt: skip
# What a class of the user's own may override without changing what an update is.
_HARMLESS = frozenset({"__init__", "build", "get_config", "from_config"})


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer inside a loss scale, or the optimizer itself."""
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def updates_by_variable(optimizer: Any) -> bool:
    """Whether all that makes up the update is Keras's own, and known to be one of each variable."""
    known = [getattr(keras.optimizers, name, None) for name in _BY_VARIABLE]
    kinds = type(optimizer).__mro__
    of_keras = next((i for i, kind in enumerate(kinds) if kind in known), None)
    if of_keras is None:
        return False
    inherited = set(dir(kinds[of_keras])) - _HARMLESS
    methods = {name for name in inherited if callable(getattr(kinds[of_keras], name))}
    own = {name for kind in kinds[:of_keras] for name in vars(kind)}
    ordinary = {"__module__", "__doc__", "__qualname__", "__firstlineno__",
                "__static_attributes__", "_api_export_path", "_api_export_symbol_id"}  # fmt: skip
    return not (own & inherited) - ordinary and not methods & set(vars(optimizer))


def builds_only_slots(optimizer: Any) -> bool:
    """Whether its `build` does nothing but make variables, and nothing depends on it before.

    One that also writes them (ScheduleFreeAdamW) has no effect with that in a traced step: the
    trace that builds is not the one that runs. A loss scale is a constant before, and a variable
    after.
    """
    own = type(optimizer).build.__module__.startswith("keras.")
    return own and updates_by_variable(optimizer)
