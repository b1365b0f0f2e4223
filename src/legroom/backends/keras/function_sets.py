"""The functions of a model, Keras's own and guarded ones, kept beside each other.

Keras keeps one train, one test and one predict function on a model, with all that was traced. A
model that is trained by `legroom.fit` now and by its own `fit` then, or with other options, needs
others each time. They are changed here, not made again: each manner of running the model has its
set, until somebody else takes a function off the model, as `compile` and `quantize` do. What is on
the model is Keras's rule for what holds, so it is the rule for all the sets.

The sets lie on the model itself: they hold it, and go with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from legroom.backends.keras.recompute_blocks import put_blocks, take_blocks

__all__ = ["forget_all", "make_room", "siblings", "switch"]

_NAMES = ("train_function", "test_function", "predict_function")
_OURS = "_legroom_functions"
# Of other manners than the present one: Keras's own, and the last few guarded ones.
_MOST = 4

_models: weakref.WeakSet[Any] = weakref.WeakSet()


class _Sets:
    def __init__(self) -> None:
        self.current: Hashable = None
        self.others: dict[Hashable, dict[str, Any]] = {}
        self._blocks: dict[Hashable, Any] = {}
        self._left: dict[str, Any] = {}

    def change(self, model: Any, manner: Hashable) -> None:
        made = {name: getattr(model, name) for name in _NAMES}
        if any(made[name] is not left for name, left in self._left.items() if left is not None):
            self.others.clear()
            self._blocks.clear()
        _tell(made, "suspend")
        self.others[self.current] = made
        self._blocks[self.current] = take_blocks(model)
        self.current = manner
        kept = self.others.pop(manner, {})
        put_blocks(self._blocks.pop(manner, []))
        for name in _NAMES:
            setattr(model, name, kept.get(name))
            if kept.get(name) is None and made[name] is not None:
                # What is there in one manner is there in all of them, so that whoever takes it
                # away is noticed. Nothing is traced by this.
                getattr(model, f"make_{name}")()
        _tell(kept, "resume")
        self._left = {name: getattr(model, name) for name in _NAMES}
        while len(self.others) > _MOST:
            oldest = next(key for key in self.others if key is not None)
            del self.others[oldest]
            self._blocks.pop(oldest, None)


def switch(model: Any, manner: Hashable) -> None:
    """Have a model run in a manner from now on, with the functions that it had when it last did.

    Args:
        model: The model.
        manner: Any name of it; None is Keras's own.
    """
    sets = vars(model).get(_OURS)
    if sets is None:
        if manner is None:
            return
        sets = _Sets()
        object.__setattr__(model, _OURS, sets)  # past Keras, which would track it
        _models.add(model)
    if sets.current != manner:
        sets.change(model, manner)


def make_room(model: Any) -> None:
    """Keras is about to train a model by itself: it finds all the memory that it would find."""
    sets = vars(model).get(_OURS)
    for functions in [] if sets is None else sets.others.values():
        _tell(functions, "drop_slices")


def siblings(model: Any, name: str) -> list[Any]:
    """A model's functions of this name in other manners, the last one first."""
    sets = vars(model).get(_OURS)
    found = [] if sets is None else [made.get(name) for made in sets.others.values()]
    return [function for function in reversed(found) if function is not None]


def forget_all() -> None:
    """Leave every model with Keras's own functions, and nothing else."""
    for model in list(_models):
        switch(model, None)
        object.__delattr__(model, _OURS)
    _models.clear()


def _tell(functions: dict[str, Any], what: str) -> None:
    for function in functions.values():
        told = getattr(getattr(function, "__self__", function), what, None)
        if told is not None:
            told()
