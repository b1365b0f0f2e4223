"""One slice of a batch, run by the model's own step: what it gives, and what it shows of itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from legroom.backends.jax.slices.caught import Applied, catching
from legroom.backends.jax.slices.draws import Draws, drawing
from legroom.backends.jax.slices.lifted import Lift, lifted
from legroom.backends.jax.step import batch
from legroom.backends.jax.step.state import (
    State,
    as_state,
    as_tuple,
    beside_weights,
    without_untouched,
)
from legroom.backends.keras.slices.held_metrics import holding, noting_results
from legroom.backends.keras.slices.loss_scale import Scale, scaling
from legroom.backends.keras.slices.rules import Refused, Rules
from legroom.backends.keras.slices.still_norms import still_norms
from legroom.backends.keras.state.training_variables import members

__all__ = ["Shown", "SliceStep", "arrays_of", "with_arrays"]


@dataclasses.dataclass
class Shown:
    """What a slice showed of itself, beside numbers: known when it was traced.

    Attributes:
        outputs: What the step returned, with its arrays taken out.
        results: Which of its leaves are metrics' results.
        names: What the loss terms are called.
        draws: The random draws.
        batch_norms: The BatchNorm layers that would have used the batch's statistics.
        held: The updates of metrics that were held back, with holes for their arrays.
        held_order: Which metric each of them is for.
        held_results: For the leaves of the outputs that are results of those, which.
        weighted: Whether losses had the slice's share in them.
    """

    outputs: Any = None
    results: set[int] = dataclasses.field(default_factory=set)
    names: list[str] = dataclasses.field(default_factory=list)
    draws: list[Any] = dataclasses.field(default_factory=list)
    batch_norms: list[str] = dataclasses.field(default_factory=list)
    held: list[Any] = dataclasses.field(default_factory=list)
    held_order: list[int] = dataclasses.field(default_factory=list)
    held_results: dict[int, int] = dataclasses.field(default_factory=dict)
    weighted: bool = False


class SliceStep:
    """A model's step, as a function of arrays alone, with gradients instead of an update.

    Args:
        model: The model.
        kind: "train", "test" or "predict".

    Attributes:
        layouts: How its state lies on several devices; None where there is one.
    """

    def __init__(self, model: Any, kind: str) -> None:
        self.model = model
        self.kind = kind
        self.layouts: State | None = None
        optimizers = [model.optimizer, *members(model)]
        self._optimizers = list(
            {
                id(one): one for one in optimizers if isinstance(one, keras.optimizers.Optimizer)
            }.values()
        )  # fmt: skip

    def whole(self, state: State, data: Any) -> tuple[Any, State]:
        """The step as Keras runs it."""
        if self.kind == "predict":
            outputs, changed = self.model.predict_step(as_tuple("predict", state), data)
            return outputs, state._replace(non_trainable_variables=list(changed))
        step = getattr(self.model, f"{self.kind}_step")
        outputs, changed = step(as_tuple(self.kind, state), data)
        return outputs, as_state(self.kind, changed)

    def __call__(
        self,
        state: State,
        data: Any,
        share: Any,
        totals: Mapping[int, Any],
        start: Any,
        rules: Rules,
        *,
        tried: bool = False,
        still: bool = False,
    ) -> tuple[dict[str, Any], Shown]:
        """Run a slice.

        Args:
            state: What it begins with.
            data: The slice.
            share: Its share of the batch's samples; None for a whole batch.
            totals: What the whole batch's loss terms are divided by.
            start: How many samples of the batch come before it.
            rules: How slices make up the step.
            tried: Whether it only shows what it does: BatchNorm is held still then.
            still: Whether random draws are, too.

        Returns:
            Arrays, by what they are; and what it showed.
        """
        shown = Shown()
        scale = Scale(share, rules.terms, dict(totals))
        draws = Draws(rules.draws if share is not None else (), start, still=still)
        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(catching(self._optimizers))
            stack.enter_context(scaling(scale, unscaled=tried))
            stack.enter_context(drawing(draws))
            results = stack.enter_context(noting_results(self.model.metrics))
            held = stack.enter_context(holding(rules.metrics, rules.unweighted))
            if tried:
                shown.batch_norms = stack.enter_context(still_norms())
            outputs, changed = self.whole(state, data)
        if self.kind == "train":
            _see_that_it_goes_on(caught, state, changed)
        lift = Lift([*batch.flatten(state), *batch.flatten(data)])
        leaves = batch.flatten(outputs)
        shown.outputs = batch.unflatten(outputs, [None] * len(leaves))
        of_metrics = {id(lifted(leaf)): index for index, leaf in results.values()}
        shown.results = {i for i, leaf in enumerate(leaves) if id(leaf) in of_metrics}
        shown.names, shown.draws = scale.names, draws.seen
        shown.weighted = bool(scale.weighted)
        of_held = {id(lifted(leaf)): index for index, leaf in held.results.values()}
        shown.held_results = {
            i: of_held[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in of_held
        }
        calls = [batch.map_leaves(lift, call) for call in held.calls]
        shown.held_order = held.order
        arrays = {
            "outputs": leaves,
            "state": without_untouched(beside_weights(state), beside_weights(changed)),
            "gradients": [one.gradients for one in caught],
            "terms": [lift(x) for x in scale.values],
            "counts": {term: lift(x) for term, x in scale.counts.items()},
            "held": [arrays_of(call) for call in calls],
        }
        shown.held = [with_arrays(call, [_HOLE] * len(arrays_of(call))) for call in calls]
        return arrays, shown

    def update(self, state: State, gradients: Sequence[Any]) -> State:
        """Move the weights."""
        weights, slots = self.model.optimizer.stateless_apply(
            state.optimizer_variables, list(gradients), state.trainable_variables
        )
        return state._replace(trainable_variables=list(weights), optimizer_variables=list(slots))


class _Hole:
    """Where an array was."""


_HOLE = _Hole()
# Run op by op, a step is given its batch as NumPy has it.
_ARRAYS = (jax.Array, np.ndarray)


def arrays_of(structure: Any) -> list[Any]:
    """The arrays in a structure that has other leaves, too."""
    return [leaf for leaf in batch.flatten(structure) if isinstance(leaf, _ARRAYS)]


def with_arrays(structure: Any, arrays: Sequence[Any]) -> Any:
    """A structure with others in the places of its arrays, or of its holes."""
    left = iter(arrays)
    leaves = [
        next(left) if isinstance(leaf, (*_ARRAYS, _Hole)) else leaf
        for leaf in batch.flatten(structure)
    ]
    return batch.unflatten(structure, leaves)


def _see_that_it_goes_on(caught: Sequence[Applied], state: State, changed: State) -> None:
    """Refuse a step that does more with its weights than to hand them to its optimizer."""
    if not caught:
        raise Refused("it does not hand its gradients to the optimizer's stateless_apply")
    if len(caught) > 1:
        raise Refused("it updates its weights several times for one batch")
    one = caught[0]
    if not (
        _same(one.weights, state.trainable_variables)
        and _same(one.slots, state.optimizer_variables)
    ):
        raise Refused("it hands other weights to its optimizer than those that it was given")
    if not (
        _same(changed.trainable_variables, state.trainable_variables)
        and _same(changed.optimizer_variables, state.optimizer_variables)
    ):
        raise Refused("it changes its weights itself, beside its optimizer")


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
