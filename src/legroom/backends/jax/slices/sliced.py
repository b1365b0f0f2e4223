"""A batch run in slices: their gradients are added up, and the weights are moved once.

Until the gradients of all slices are there, nothing that was there before is given away, so a
slice that runs out of memory has done nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from keras import StatelessScope

from legroom.backends.jax.device.pool import Pool
from legroom.backends.jax.slices.halves import summed_dtype
from legroom.backends.jax.slices.slice_run import Shown, SliceStep, with_arrays
from legroom.backends.jax.step import batch
from legroom.backends.jax.step.layout import laid_out
from legroom.backends.jax.step.program import Program
from legroom.backends.jax.step.state import State, beside_weights, refilled
from legroom.backends.jax.step.uninterrupted import uninterrupted
from legroom.backends.keras.slices.held_metrics import combine, update_held
from legroom.backends.keras.slices.rules import Rules

__all__ = ["Sliced"]


class Sliced:
    """Runs batches in slices.

    Args:
        step: The step.
        rules: How slices make it up.
        pool: Where it runs.
        seeds: Which of the variables that are not trained are seeds: each slice begins with the
            step's own.
        compiled: Whether it is compiled.
    """

    def __init__(
        self, step: SliceStep, rules: Rules, pool: Pool, seeds: Sequence[int], *, compiled: bool
    ) -> None:
        self._step = step
        self._rules = rules
        self._seeds = frozenset(seeds)
        self._shown: dict[Any, Shown] = {}
        # Of what is run now, for programs that are traced by it.
        self._key: Any = None
        self._sizes: list[int] = []
        self._part = Program(self._run_part, pool, (0,), compiled=compiled)
        self._count = Program(self._count_part, pool, compiled=compiled)
        self._begin = Program(self._zeros, pool, compiled=compiled)
        self._tell = Program(self._tell_metrics, pool, compiled=compiled)
        self._update = Program(self._move, pool, (0, 1), missed=True, compiled=compiled)

    def run(
        self, state: State, data: Any, samples: int, size: int, commit: Callable[[State], None]
    ) -> Any:
        """Run a batch; returns what the step returns for it.

        Args:
            state: The state before it.
            data: The batch.
            samples: Its samples.
            size: How many of them a slice should have at most.
            commit: Called with the state after it, before anything else can happen.
        """
        pieces = list(batch.slices(data, samples, size))
        sizes = [count for _, count, _ in pieces]
        totals = self._totals(state, pieces, samples)
        sums = self._begin(state.trainable_variables) if self._step.kind == "train" else None
        now, outputs, held, shown = state, [], [], None
        for start, count, part in pieces:
            key = self._key = batch.shapes(part)
            share = jnp.float32(count / samples)
            sums, made = self._part(sums, now, part, share, totals, jnp.uint32(start), key=key)
            shown = self._shown[key]
            outputs.append(made["outputs"])
            held.append(made["held"])
            after = refilled(beside_weights(now), made["state"])
            now = now._replace(
                non_trainable_variables=self._next(state, after.non_trainable_variables),
                metrics_variables=after.metrics_variables,
            )
        assert shown is not None
        now = now._replace(non_trainable_variables=after.non_trainable_variables)
        told: list[Any] = []
        if held[0]:
            self._sizes = sizes
            metrics, told = self._tell(now.metrics_variables, held, key=(*sizes, key))
            now = now._replace(metrics_variables=metrics)
        results = self._joined(outputs, sizes, shown, told)
        moved = (now.trainable_variables, now.optimizer_variables, sums)
        if sums is not None:
            self._update.needs(*moved)  # compiled where Ctrl-C still can stop it
        with uninterrupted():
            if sums is not None:
                weights, slots = self._update(*moved)
                now = now._replace(trainable_variables=weights, optimizer_variables=slots)
            commit(now)
        return batch.unflatten(shown.outputs, results)

    def needs(self, state: State, data: Any, samples: int, size: int) -> int | None:
        """What slices of this size take beyond what is there before; None op by op."""
        _, count, part = next(batch.slices(data, samples, size))
        key = self._key = batch.shapes(part)
        sums = None
        if self._step.kind == "train":
            sums = [_sum_like(x) for x in state.trainable_variables]
        arguments: Any = (state, part, jnp.float32(count / samples), {}, jnp.uint32(0))
        if self._rules.counts:
            return None
        taken = self._part.needs(sums, *arguments, key=key)
        return None if taken is None else taken + sum(x.size * x.dtype.itemsize for x in sums or ())

    # The programs.

    def _run_part(
        self, sums: Any, state: State, data: Any, share: Any, totals: Any, start: Any
    ) -> Any:
        """A slice, and the sums with its gradients."""
        arrays, shown = self._step(state, data, share, totals, start, self._rules)
        self._shown[self._key] = shown
        gradients = arrays.pop("gradients")
        del arrays["terms"], arrays["counts"]
        if sums is not None:
            weight = 1.0 if self._rules.gradients[0] == "sum" or shown.weighted else share
            sums = [
                total if gradient is None else total + gradient.astype(total.dtype) * weight
                for total, gradient in zip(sums, gradients[0], strict=True)
            ]
            sums = self._laid_out(sums, []).trainable_variables
        arrays["state"] = laid_out(arrays["state"], self._step.layouts)
        return sums, arrays

    def _count_part(self, state: State, data: Any, start: Any) -> Any:
        """What the loss terms of a slice are divided by."""
        arrays, _ = self._step(state, data, None, {}, start, self._rules)
        return arrays["counts"]

    def _zeros(self, weights: Sequence[Any]) -> list[Any]:
        sums = [jnp.zeros(like.shape, like.dtype) for like in map(_sum_like, weights)]
        return self._laid_out(sums, []).trainable_variables

    def _move(self, weights: Any, slots: Any, sums: Any) -> Any:
        gradients = [x.astype(w.dtype) for x, w in zip(sums, weights, strict=True)]
        moved = self._step.update(State(weights, [], slots, []), gradients)
        moved = self._laid_out(moved.trainable_variables, moved.optimizer_variables)
        return moved.trainable_variables, moved.optimizer_variables

    def _laid_out(self, weights: list[Any], slots: list[Any]) -> State:
        return laid_out(State(weights, [], slots, []), self._step.layouts)

    def _tell_metrics(self, variables: Any, held: Any) -> Any:
        """Tell metrics what slices held back, each once for the whole batch."""
        rules, model, shown = self._rules, self._step.model, self._shown[self._key]
        calls = [
            [with_arrays(call, x) for call, x in zip(shown.held, arrays, strict=True)]
            for arrays in held
        ]
        mapping = list(zip(model.metrics_variables, variables, strict=True))
        with StatelessScope(state_mapping=mapping) as scope:
            update_held(
                rules.metrics, shown.held_order, calls, self._sizes, rules.held, batch.concatenate
            )
            results = [metric.result() for metric in rules.metrics]
        return [scope.get_current_value(v) for v in model.metrics_variables], results

    # Around them.

    def _totals(self, state: State, pieces: Sequence[Any], samples: int) -> dict[int, Any]:
        """What the whole batch's loss terms are divided by, where that is not its samples."""
        if not self._rules.counts:
            return {}
        found: list[dict[int, Any]] = []
        for start, _, part in pieces:
            found.append(self._count(state, part, jnp.uint32(start), key=batch.shapes(part)))
        return {term: sum(counts[term] for counts in found) for term in found[0]}

    def _next(self, before: State, after: Sequence[Any]) -> list[Any]:
        """What the next slice begins with: the same seeds as the one before it."""
        first = before.non_trainable_variables
        return [first[i] if i in self._seeds else x for i, x in enumerate(after)]

    def _joined(
        self, outputs: Sequence[Any], sizes: Sequence[int], shown: Shown, told: Sequence[Any]
    ) -> list[Any]:
        """What the whole batch's step would have returned."""
        rules = self._rules
        ways = rules.outputs or ["last"] * len(outputs[-1])
        if rules.concatenates:
            ways = ["concat" if batch.leading(x) == sizes[-1] else "last" for x in outputs[-1]]
        shares = [size / sum(sizes) for size in sizes]
        return [
            told[shown.held_results[i]]
            if i in shown.held_results
            else combine([leaves[i] for leaves in outputs], way, shares, batch.concatenate)
            for i, way in enumerate(ways)
        ]


def _sum_like(weight: Any) -> Any:
    """The shape of a sum of gradients."""
    return jax.ShapeDtypeStruct(weight.shape, summed_dtype(weight.dtype))
