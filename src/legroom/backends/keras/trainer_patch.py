"""Keras's trainer, replaced where it makes its functions and where trainings begin.

`fit`, `evaluate`, `predict` and the three `*_on_batch` all end in one of three functions that the
trainer makes for a compiled model. Replacing those leaves everything else Keras's own: data
adapters, callbacks, logs, `History`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from legroom.backends import patches
from legroom.backends.keras.function_sets import forget_all, make_room
from legroom.backends.steps import BackendStep

__all__ = ["Around", "Guard", "Manner", "own_maker", "put_on_trainer"]

# Given a model, what its function is for and its step: the runner of that step.
Guard = Callable[[Any, str, BackendStep], Callable[[Any], Any]]
# Given a model, a name of how it is guarded, the same for the same options; None if it is not.
Manner = Callable[[Any], Hashable]
# Called with a model, a method's name and the call itself, around `fit` and its like; returns what
# they return.
Around = Callable[[Any, str, Callable[[], Any]], Any]

_MADE = {"train": "make_train_function", "test": "make_test_function",
         "predict": "make_predict_function"}  # fmt: skip
_CALLED = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def put_on_trainer(
    group: str,
    owner: str,
    making: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    manner: Manner,
    around: Around,
    patch_epochs: Callable[[], None],
) -> None:
    """Hand Keras guarded functions for the models that are wanted.

    Args:
        group: Who takes them off.
        owner: The framework's trainer, as in the registry.
        making: Given what a function is for and the trainer's method that makes it, what is called
            instead.
        manner: How a model is to be guarded, if it is.
        around: What is called around `fit` and its like.
        patch_epochs: Has the way through the data counted, where trainings can resume.
    """
    if patches.has(group):
        return
    try:
        for kind, name in _MADE.items():
            patches.put(group, owner, name, functools.partial(making, kind))
        for name in _CALLED:
            patches.put(group, owner, name, functools.partial(_surrounded, name, manner, around))
        if patches.missing("resume") is None:
            patch_epochs()
    except Exception:
        patches.take_off(group)  # all of it, or nothing
        raise
    patches.at_removal(forget_all)


def own_maker(model: Any, trainer: type) -> str | None:
    """Why a model whose class makes its functions itself has to be left alone."""
    for name in _MADE.values():
        if getattr(type(model), name) is not getattr(trainer, name):
            return f"its class has a {name} of its own"
    return None


def _surrounded(
    name: str, manner: Manner, around: Around, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if manner(self) is None:
            if name in ("fit", "train_on_batch"):
                make_room(self)
            return original(self, *args, **kwargs)
        return around(self, name, functools.partial(original, self, *args, **kwargs))

    return method
