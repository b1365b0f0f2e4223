"""The variables of a Keras training, found through its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
from keras.src.backend import Variable  # keras.Variable is a class below it before 3.7
from keras.src.backend.common import global_state

__all__ = ["global_seed_variable", "members", "training_variables"]

_KERAS_SEEDS = "global_seed_generator"


def training_variables(
    model: Any,
    identity: Callable[[Any], Any],
    kinds: tuple[type, ...] = (),
    more: Iterable[tuple[str, Iterable[Any]]] = (),
) -> list[tuple[str, Any]]:
    """Every variable that a training changes, in an order that another process finds too.

    Args:
        model: The model.
        identity: What tells one variable from another; None where it was not made yet.
        kinds: The framework's own classes of variables.
        more: Variables that are not found through the model, with what they belong to.

    Returns:
        What each belongs to, and the variable.
    """
    found: dict[int, tuple[str, Any]] = {}

    def add(group: str, variables: Iterable[Any]) -> None:
        for variable in variables:
            known = identity(variable)
            if known is not None and id(known) not in found:
                found[id(known)] = (group, variable)

    add("model", model.variables)
    add("metrics", model.metrics_variables)
    for thing in members(model):
        if isinstance(thing, keras.optimizers.Optimizer):
            add("optimizer", thing.variables)
        elif isinstance(thing, (Variable, *kinds)):
            add("attribute", [thing])
        elif isinstance(thing, keras.random.SeedGenerator):
            add("seed", [thing.state])
    for group, variables in more:
        add(group, variables)
    return list(found.values())


def members(model: Any) -> Iterator[Any]:
    """The objects that a model holds, directly or in plain containers."""
    if getattr(model, "optimizer", None) is not None:
        yield model.optimizer
    waiting = [(value, 0) for value in vars(model).values()]
    while waiting:
        value, depth = waiting.pop(0)
        yield value
        if depth < 3:
            if isinstance(value, (list, tuple)):
                waiting += [(part, depth + 1) for part in value]
            elif isinstance(value, dict):
                waiting += [(part, depth + 1) for part in value.values()]


def global_seed_variable() -> Any:
    """The state of Keras's own generator of random numbers; None before it is used."""
    generator = global_state.get_global_attribute(_KERAS_SEEDS)
    return None if generator is None else generator.state
