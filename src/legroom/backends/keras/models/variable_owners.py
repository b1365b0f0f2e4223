"""Whose a variable is: a metric's, or a layer's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import keras

__all__ = ["layer_of", "metrics_by_variable"]


def _value(variable: Any) -> Any:
    return variable._value


def metrics_by_variable(told_by: Callable[[Any], Any] = _value) -> dict[int, Any]:
    """The metric of each variable, by its id, of all metrics alive in this process.

    Args:
        told_by: What a variable's id is the id of.
    """
    owners: dict[int, Any] = {}
    for thing in gc.get_objects():
        # Not isinstance: that would wake up lazy objects of other libraries.
        if issubclass(type(thing), keras.metrics.Metric):
            for variable in getattr(thing, "_variables", ()):
                owners[id(told_by(variable))] = thing
    return owners


def layer_of(model: Any, variable: Any, told_by: Callable[[Any], Any] = _value) -> str | None:
    """The name of the layer whose state a variable is; None where there is none, or no model."""
    for layer in model._flatten_layers() if model is not None else ():
        if any(told_by(own) is variable for own in layer._non_trainable_variables):
            return str(layer.name)
    return None
