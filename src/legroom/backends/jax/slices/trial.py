"""A step run on a few samples, whole and in two slices, without leaving a trace of it.

What agrees tells how its slices make up the step; `backends.keras.slices.judge` says what follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from legroom.backends.jax.device.errors import is_oom
from legroom.backends.jax.device.pool import Pool
from legroom.backends.jax.slices.draws import draws_of
from legroom.backends.jax.slices.halves import as_float
from legroom.backends.jax.slices.slice_run import Shown, SliceStep, with_arrays
from legroom.backends.jax.slices.thinned import thinned
from legroom.backends.jax.step import batch
from legroom.backends.jax.step.program import Program
from legroom.backends.jax.step.state import State, beside_weights, refilled, variables_of
from legroom.backends.keras.models.variable_owners import layer_of, metrics_by_variable
from legroom.backends.keras.slices import few_samples, judge
from legroom.backends.keras.slices.own_draws import OwnDraws, own_draws
from legroom.backends.keras.slices.python_state import PythonState, iterators
from legroom.backends.keras.slices.rules import OVERWRITTEN, Refused, Rules
from legroom.backends.keras.slices.runs import Run
from legroom.core.aside import in_a_line

__all__ = ["Trial"]


class Trial:
    """Finds out how a step's slices make up the step.

    Args:
        step: The step.
        origin: The method behind it, whose memory in Python is looked at.
        state: What it begins with.
        pool: Where it runs.
        compiled: Whether it is compiled, or run op by op.
    """

    def __init__(
        self, step: SliceStep, origin: Any, state: State, pool: Pool, *, compiled: bool
    ) -> None:
        self._step = step
        self._origin = origin
        self._state = state
        self._pool = pool
        self._compiled = compiled
        self._model = step.model
        self._variables = variables_of(step.kind, step.model)
        self._moved: list[str] = []

    def find(self, data: Any) -> Rules:
        """Compare a few samples of a batch, whole and in slices."""
        samples = batch.batch_size(data)
        if samples is None:
            return Rules(refusal="its arguments do not share a first axis of samples")
        if samples < 2:
            return Rules(refusal="its batch is a single sample")
        if any(getattr(v, "overwrite_with_gradient", False) for v in self._model.variables):
            return Rules(refusal=OVERWRITTEN)
        if taken := iterators(self._origin):
            why = f"it takes from {', '.join(taken)}, and each slice would take more"
            return Rules(refusal=why)
        self._python = PythonState(self._origin)
        problem = None
        for few in dict.fromkeys((min(4, samples), 2)):
            try:

                def compare(picked: list[int]) -> Rules:
                    return self._compare(batch.pick(data, picked, samples), len(picked), samples)

                return few_samples.compare_in_turn(_unlike(data, samples, few), samples, compare)
            except Refused as refusal:
                return Rules(refusal=str(refusal))
            except Exception as error:
                if not is_oom(error):
                    why = f"it does not run on a part of its batch: {in_a_line(error)}"
                    return Rules(refusal=why)
                problem = f"{few} samples were too much for a comparison"
            finally:
                self._python.restore()
            gc.collect()
            self._pool.forget_cached()
        return Rules(refusal=f"whether slices are the same is not known: {problem}")

    def _compare(self, tiny: Any, few: int, samples: int) -> Rules:
        trains = self._step.kind == "train"
        pieces = [batch.cut(tiny, 0, 1, few), batch.cut(tiny, 1, few, few)]
        sizes = [1, few - 1]
        self._moved = []
        whole = self._run([tiny], [few], Rules(), still=True)
        parts = self._run(pieces, sizes, Rules(), still=True)
        if not self._compiled and (changed := self._python.changed()):
            raise Refused(f"it changes {', '.join(changed)}, which each slice would change again")
        judge.refuse_other_course(whole, parts, samples)
        near = judge.Near.of(whole, str(self._model.compute_dtype))
        judge.refuse_no_numbers(whole, parts, near)
        terms, coupled = judge.term_rules(whole, parts, near)
        totals = judge.total_counts(whole, parts)
        rules = Rules(applies=1, terms=terms, counts=bool(totals))
        if totals or any(terms):
            parts = self._run(pieces, sizes, rules, totals, still=True)
        gradients = judge.gradient_rules(whole, parts, near) if trains else ["mean"]
        judge.refuse_unshown(terms, gradients, whole, parts)
        draws = draws_of(whole.draws[0], parts.draws, sizes)
        if any(draw.way == "rows" for draw in draws) and None not in gradients:
            draws = self._rows_or_apart(draws, rules, tiny, pieces, sizes, totals, near)
        rules = dataclasses.replace(rules, draws=draws, gradients=gradients)
        moved = [name for name in whole.moved if name in parts.moved]
        if None in gradients and not coupled and not moved:
            coupled = ["the loss of the step"]
        agree = not coupled and None not in gradients
        own = type(self._model).train_step.__module__.startswith("keras.")
        noise = judge.own_noise(whole, parts, agree=agree, resumes=False, known=own)
        if noise:
            coupled = []  # what does not agree has its reason
        rules = self._look_at_state(rules, whole, parts, near)
        rules = self._look_at_held_updates(rules, tiny, pieces, sizes, totals, near)
        layers = {layer.name for layer in self._model._flatten_layers()}
        redrawn = judge.redrawn_layers(draws, layers)
        outputs = judge.output_ways(judge.output_rules(whole, parts, near), whole.results)
        coupled = list(dict.fromkeys([*whole.batch_norms, *rules.coupled, *coupled]))
        return dataclasses.replace(
            rules, coupled=coupled, redrawn=[*redrawn, *noise], outputs=outputs
        )

    def _rows_or_apart(
        self, draws: Any, rules: Rules, tiny: Any, pieces: Any, sizes: Any, totals: Any, near: Any
    ) -> Any:
        """The draws, with those apart that are not rows of samples, though they look like it."""
        one = self._run([tiny], [sum(sizes)], rules)

        def agree(scopes: set[str]) -> bool:
            tried = [
                dataclasses.replace(draw, way="rows" if draw.scope in scopes else "apart")
                if draw.way == "rows"
                else draw
                for draw in draws
            ]
            cut = self._run(pieces, sizes, dataclasses.replace(rules, draws=tried), totals)
            if self._step.kind == "train":
                return None not in judge.gradient_rules(one, cut, near)
            return all(judge.term_rules(one, cut, near)[1] == [] for _ in "1")

        return judge.apart_where_unlike(draws, agree)

    def _look_at_state(self, rules: Rules, whole: Run, parts: Run, near: judge.Near) -> Rules:
        """What it writes besides its weights: does it come out the same?"""
        unlike = judge.unlike_state(whole, parts, (), near)
        if not unlike:
            return rules
        metrics, layers = judge.owners(
            unlike, metrics_by_variable(_itself), lambda v: layer_of(self._model, v, _itself)
        )
        return dataclasses.replace(rules, metrics=metrics, coupled=layers)

    def _look_at_held_updates(
        self, rules: Rules, tiny: Any, pieces: Any, sizes: list[int], totals: Any, near: judge.Near
    ) -> Rules:
        """The metrics that are to be told of the whole batch at once: how that is put together."""
        if not rules.metrics:
            return rules
        whole = self._run([tiny], [sum(sizes)], rules, still=True)
        parts = self._run(pieces, sizes, rules, totals, still=True)
        held = judge.held_rules(whole, parts, near)
        if held is not None:
            return dataclasses.replace(rules, held=held)
        # Told something that slices can't be put together to, each counts for itself.
        names = [metric.name for metric in rules.metrics]
        return dataclasses.replace(rules, metrics=(), coupled=[*rules.coupled, *names])

    # Running it.

    def _run(
        self,
        pieces: Sequence[Any],
        sizes: Sequence[int],
        rules: Rules,
        totals: Mapping[int, Any] | None = None,
        *,
        still: bool = False,
    ) -> Run:
        """Run it on some slices, one after another."""
        run = Run(list(sizes))
        state = self._state
        said = io.StringIO()  # what it prints is for the real step to say
        with (
            own_draws() as drawn,
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
                share = None if len(sizes) == 1 else size / sum(sizes)
                start = sum(sizes[:number])
                made, shown = self._run_slice(state, piece, share, start, rules, totals, still)
                self._note(run, made, shown, share)
                after = refilled(beside_weights(state), made["state"])
                state = state._replace(
                    non_trainable_variables=self._with_own_seeds(after.non_trainable_variables),
                    metrics_variables=after.metrics_variables,
                )
            self._note_draws(drawn)
        run.moved = list(self._moved)
        run.written = self._written(state)
        return run

    def _with_own_seeds(self, after: Sequence[Any]) -> list[Any]:
        """Each slice begins with the seeds of the first one."""
        rows = zip(
            self._variables.non_trainable_variables,
            self._state.non_trainable_variables,
            after,
            strict=True,
        )
        return [old if judge.is_seed(variable) else new for variable, old, new in rows]

    def _run_slice(
        self,
        state: State,
        piece: Any,
        share: Any,
        start: int,
        rules: Rules,
        totals: Any,
        still: Any,
    ) -> tuple[Any, Shown]:
        shown = Shown()

        def run(state: State, piece: Any) -> Any:
            nonlocal shown
            given = None if share is None else jnp.float32(share)
            arrays, shown = self._step(
                state, piece, given, totals or {}, start, rules, tried=True, still=still
            )
            arrays["gradients"] = [[thinned(g) for g in each] for each in arrays["gradients"]]
            return arrays

        made = Program(run, self._pool, compiled=self._compiled, once=True)(state, piece)
        return made, shown

    def _note(self, run: Run, made: Any, shown: Shown, share: float | None) -> None:
        gradients = [[_as_array(g) for g in each] for each in made["gradients"]]
        if shown.weighted and share is not None:
            gradients = [[g if g is None else g / share for g in each] for each in gradients]
        run.gradients.append(gradients)
        run.outputs.append([_as_array(x) for x in made["outputs"]])
        run.terms.append([_as_array(x) for x in made["terms"]])
        run.counts.append({k: _as_array(x) for k, x in made["counts"].items()})
        calls = map(with_arrays, shown.held, made["held"])
        run.held.append([[_as_array(x) for x in batch.flatten(call)] for call in calls])
        run.draws.append(shown.draws)
        run.names, run.results, run.batch_norms = shown.names, shown.results, shown.batch_norms

    def _note_draws(self, drawn: OwnDraws) -> None:
        self._moved = list(dict.fromkeys([*self._moved, *drawn.moved()]))

    def _written(self, after: State) -> dict[int, tuple[Any, Any, Any]]:
        """The variables that it has written, besides those that its optimizer looks after."""
        found = {}
        for name in ("non_trainable_variables", "metrics_variables"):
            rows = zip(
                *(getattr(x, name) for x in (self._variables, self._state, after)), strict=True
            )
            for variable, before, now in rows:
                if before is not now:
                    one, other = _as_array(before), _as_array(now)
                    if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                        found[id(variable)] = (variable, one, other)
        return found


def _itself(variable: Any) -> Any:
    return variable  # its value is not there while it is trained


def _unlike(data: Any, samples: int, few: int) -> list[int]:
    """A few samples that differ in how much of them counts, where any do."""
    among = min(samples, few_samples.AMONG)
    heads = []
    for leaf in batch.flatten(data):
        small = few_samples.SMALL_SAMPLE
        if batch.leading(leaf) == samples and np.prod(leaf.shape) <= samples * small:
            head = _as_array(leaf[:among])
            if head.dtype.kind in "biufc":
                heads.append(head)
    return few_samples.unlike(heads, among, few)


def _as_array(value: Any) -> Any:
    """What an array holds, as NumPy has it; other things as they are."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return np.asarray(as_float(value))
    if value is None or isinstance(value, (str, bytes)):
        return value
    return np.array(value)
