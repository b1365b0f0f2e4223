"""The state of a model as its steps are given it: lists of arrays, in Keras's order."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["KINDS", "State", "as_attribute", "as_state", "as_tuple", "beside_weights",
           "refilled",
           "variables_of", "without_untouched"]  # fmt: skip

_NAMES = {
    "train": ("trainable_variables", "non_trainable_variables", "optimizer_variables",
              "metrics_variables"),
    "test": ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    "predict": ("trainable_variables", "non_trainable_variables"),
}  # fmt: skip
KINDS = tuple(_NAMES)


class State(NamedTuple):
    """All parts of it; those that a step does not have are empty."""

    trainable_variables: list[Any]
    non_trainable_variables: list[Any]
    optimizer_variables: list[Any]
    metrics_variables: list[Any]


def as_state(kind: str, parts: Any) -> State:
    """What a step of this kind is given, or returns."""
    given = dict(zip(_NAMES[kind], parts, strict=True))
    return State(*(list(given.get(name, ())) for name in State._fields))


def as_tuple(kind: str, state: State) -> tuple[list[Any], ...]:
    """The other way round."""
    return tuple(getattr(state, name) for name in _NAMES[kind])


def as_attribute(kind: str, state: State) -> dict[str, list[Any]]:
    """As Keras keeps it on a model, for whoever wants its variables while it trains."""
    return {name: getattr(state, name) for name in _NAMES[kind]}


def variables_of(kind: str, model: Any) -> State:
    """The variables behind it."""
    optimizer = getattr(model, "optimizer", None)
    found = {
        "trainable_variables": model.trainable_variables,
        "non_trainable_variables": model.non_trainable_variables,
        "optimizer_variables": [] if optimizer is None else optimizer.variables,
        "metrics_variables": model.metrics_variables,
    }
    return State(*(list(found[n]) if n in _NAMES[kind] else [] for n in State._fields))


def beside_weights(state: State) -> State:
    """What is not for the optimizer to change."""
    return state._replace(trainable_variables=[], optimizer_variables=[])


def without_untouched(before: State, after: State) -> State:
    """A state with nothing where it is what it was: a program would copy that."""
    return State(
        *(
            [None if x is one else x for one, x in zip(old, new, strict=True)]
            for old, new in zip(before, after, strict=True)
        )
    )


def refilled(before: State, after: State) -> State:
    """The other way round."""
    return State(
        *(
            [one if x is None else x for one, x in zip(old, new, strict=True)]
            for old, new in zip(before, after, strict=True)
        )
    )
