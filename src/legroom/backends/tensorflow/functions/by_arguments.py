"""A step that is another one for other Python arguments.

Which variables a hand-written step trains, and how often it applies, may depend on any number or
missing argument that it is called with. What is traced, or found out of it, holds for those only.
How much memory it needs is one question for all of them.
"""

from __future__ import annotations

from typing import Any

from keras import tree

from legroom.backends.keras.slices.rules import Rules
from legroom.backends.tensorflow.graph.trace import GraphTrace
from legroom.backends.tensorflow.step.step import Step
from legroom.backends.tensorflow.step.traits import Traits

__all__ = ["VariedStep", "is_number"]

# A counter makes another step each time: the oldest are dropped.
_MOST_STEPS = 32


def is_number(leaf: Any) -> bool:
    """Whether an argument is a number of Python's own, or is left out."""
    return leaf is None or (isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool))


class VariedStep(Step):
    """One step for each signature of its Python arguments.

    Args:
        traits: How it is to be traced.
        returns: How its results are put together, where the user has said so.
    """

    def __init__(self, traits: Traits, *, returns: Any = None) -> None:
        super().__init__(traits, returns=returns)
        self._variants: dict[Any, Step] = {}
        self._order: int | None = None

    def _run(self, data: Any, slice_size: int | None) -> Any:
        step = self._variant(data)
        if slice_size is not None:
            others = [other for other in self._variants.values() if other is not step]
            for other in others:
                other.suspend()
        return step._run(data, slice_size)

    def rules(self, data: Any) -> Rules:
        """How the slices of such a call are put together."""
        return self._variant(data).rules(data)

    def traces(self, data: Any) -> list[GraphTrace]:
        """The functions that a step on this batch runs, traced; none for an eager step."""
        return self._variant(data).traces(data)

    def prepare(self, data: Any) -> None:
        """Trace the step without running it, so that all it uses is there."""
        self._variant(data).prepare(data)

    def graphs(self) -> list[Any]:
        """The graph of each kind of call as it was first traced; none for an eager step."""
        return [graph for step in self._variants.values() for graph in step.graphs()]

    @property
    def lean_saves(self) -> int:
        """The bytes that `go_lean` would save on whole batches like the last one, about."""
        return 0 if self._latest is None else self._latest.lean_saves

    @property
    def unborn_bytes(self) -> int:
        """What the last kind of call updates and has not created yet, at least."""
        return 0 if self._latest is None else self._latest.unborn_bytes

    def go_lean(self, lean: bool = True) -> None:
        """From now on, keep what a failed step needs in the host's memory, or no longer."""
        self._lean = lean
        for step in self._variants.values():
            step.go_lean(lean)

    def put_in_order(self, samples: int) -> None:
        """From now on, have the ops of whole batches wait for each other."""
        self._order = samples
        for step in self._variants.values():
            step.put_in_order(samples)

    @property
    def _latest(self) -> Step | None:
        return next(reversed(self._variants.values()), None)

    def _variant(self, data: Any) -> Step:
        key = tuple(
            (type(leaf).__name__, leaf)
            if is_number(leaf)
            else (str(getattr(leaf, "dtype", "")), len(getattr(leaf, "shape", ())))
            for leaf in tree.flatten(data)
        )
        step = self._variants.pop(key, None)
        if step is None:
            if len(self._variants) >= _MOST_STEPS:
                self._variants.pop(next(iter(self._variants))).drop_slices()
            step = Step(self._traits, returns=self._returns)
            if self._lean:
                step.go_lean()
            elif self._order is not None:
                step.put_in_order(self._order)
        self._variants[key] = step  # the last one is the latest
        return step
