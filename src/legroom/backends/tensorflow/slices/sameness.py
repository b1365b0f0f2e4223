"""Finding out how a step's slices make up the step: a few samples, whole and in two slices.

Nobody can tell from its code whether a hand-written step takes a mean or a sum, or whether a loss
couples the samples of a batch. So before a step is first sliced it is run, without writing
anything, on a handful of samples: once whole, once in two slices of unequal size. What agrees
tells the rule; what agrees under no rule can't be sliced the same.

Here the step is run; `backends.keras.judge` says what follows from it.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from legroom.backends.keras.models.variable_owners import layer_of, metrics_by_variable
from legroom.backends.keras.slices import judge
from legroom.backends.keras.slices.few_samples import (
    AMONG,
    SMALL_SAMPLE,
    compare_in_turn,
    unlike,
)
from legroom.backends.keras.slices.own_draws import own_draws
from legroom.backends.keras.slices.python_state import unbuilt
from legroom.backends.keras.slices.rules import OVERWRITTEN, Refused, Rules
from legroom.backends.keras.slices.runs import Run
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.slices.after_apply import tail_refusal
from legroom.backends.tensorflow.slices.draws import read_draws
from legroom.backends.tensorflow.slices.latent import asleep
from legroom.backends.tensorflow.slices.observe import bear, observe
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.errors import UnlikeBeforeError

__all__ = ["find_rules"]

# How much larger gradients are made to see whether the step limits them.
_LARGER = 1e6


def find_rules(
    traits: Traits,
    data: Any,
    model: Any = None,
    too_much: Callable[[int], bool] = lambda samples: False,
    variables: Sequence[Any] = (),
) -> Rules:
    """Compare a few samples of a batch, whole and in slices.

    Args:
        traits: The step.
        data: A batch, of which the first samples are used. Nothing is written.
        model: The Keras model, where there is one: its layers are named in what is found.
        too_much: Whether so many samples are known not to fit.
        variables: What it may read, as far as that is known.
    """
    samples = batch.batch_size(data)
    if samples is None:
        return Rules(refusal="its arguments do not share a first axis of samples")
    if samples < 2:
        return Rules(refusal="its batch is a single sample")
    if any(getattr(v, "overwrite_with_gradient", False) for v in _trained(model)):
        return Rules(refusal=OVERWRITTEN)
    if traits.eager and unbuilt(traits.origin, *traits.objects):
        bear(traits, batch.slice_batch(data, 0, 2, samples))
    problem: str | None = None
    for few in dict.fromkeys((min(4, samples), 2)):
        if traits.is_keras_own and too_much(few):
            # To run out here takes ten seconds, and TensorFlow's tape never gives back all of what
            # it held when its gradients fail.
            problem = f"{few} samples are too much for a comparison"
            continue
        try:

            def compare(picked: list[int], few: int = few) -> Rules:
                tiny = batch.pick(data, picked, samples)
                return _compare(_Comparison(traits, model, tiny, few, samples, variables))

            return compare_in_turn(_unlike(data, samples, few), samples, compare)
        except Refused as refusal:
            return Rules(refusal=str(refusal))
        except UnlikeBeforeError as error:
            return Rules(refusal=str(error).strip().splitlines()[-1].strip())
        except Exception as error:
            if not oom.is_oom(error):
                # The very step runs on whole batches, so what fails is its running on a part.
                return Rules(refusal=f"it does not run on a part of its batch: {_line(error)}")
            problem = f"{few} samples were too much for a comparison"
        gc.collect()
    if not traits.is_keras_own:
        return Rules(refusal=f"whether slices are the same could not be found out: {problem}")
    # Keras's own step is known: one apply, losses that tell their own reduction.
    norms = [layer.name for layer in _layers(model) if _normalizes(layer)]
    return Rules(unverified=problem, counts=True, coupled=norms)


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """A step, a few samples to compare it on, and what was seen and found so far.

    Attributes:
        traits: The step.
        model: The Keras model, where there is one.
        tiny: The few samples.
        few: How many they are.
        samples: How many there are in the batch that they were taken from.
        variables: What the step may read, as far as that is known.
        rules: What was found.
        near: Tells what is equal.
        whole: The run of the few samples at once that all is compared with.
        parts: Their run in slices.
        totals: The denominators of loss terms over all slices.
    """

    traits: Traits
    model: Any
    tiny: Any
    few: int
    samples: int
    variables: Sequence[Any] = ()
    rules: Rules = dataclasses.field(default_factory=Rules)
    near: judge.Near = dataclasses.field(default_factory=judge.Near)
    whole: Run = dataclasses.field(default_factory=lambda: Run([]))
    parts: Run = dataclasses.field(default_factory=lambda: Run([]))
    totals: dict[int, Any] = dataclasses.field(default_factory=dict)

    def found(self, **rules: Any) -> _Comparison:
        """The comparison with these fields of its rules found."""
        return dataclasses.replace(self, rules=dataclasses.replace(self.rules, **rules))

    def pieces(self, first: int = 1) -> list[Any]:
        """The samples in two slices, the first one of this size."""
        cuts = (0, first), (first, self.few)
        return [batch.slice_batch(self.tiny, start, stop, self.few) for start, stop in cuts]

    def run_whole(self, **how: Any) -> Run:
        """Run the step on all samples at once."""
        return observe(self.traits, [self.tiny], [self.few], self.rules, {}, **how)

    def run_parts(self, first: int = 1, **how: Any) -> Run:
        """Run the step on two slices, the first one of this size."""
        sizes = [first, self.few - first]
        return observe(self.traits, self.pieces(first), sizes, self.rules, self.totals, **how)


def _compare(comparison: _Comparison) -> Rules:
    """Look at one thing after the other; each may refuse the step."""
    for stage in (
        _look_at_whole,
        _look_at_tail,
        _look_at_parts,
        _look_at_draws,
        _look_at_terms,
        _look_at_gradients,
        _look_at_rows_of_noise,
        _look_at_own_noise,
        _look_at_coupling,
        _look_at_what_sleeps,
        _look_at_sparse_rows,
        _look_at_state,
        _look_at_held_updates,
        _look_at_outputs,
    ):
        comparison = stage(comparison)
    return comparison.rules


def _look_at_whole(seen: _Comparison) -> _Comparison:
    """The samples at once: how many optimizers are applied, and whether anything forbids slices."""
    whole = seen.run_whole(notes=True)
    if whole.refusal is not None:
        raise Refused(whole.refusal)
    if seen.traits.eager and whole.python and (changed := _changes_again(seen.traits, seen.tiny)):
        raise Refused(f"it changes {', '.join(changed)}, which each slice would change again")
    near = judge.Near.of(whole, keras.config.dtype_policy().compute_dtype)
    seen = dataclasses.replace(seen, whole=whole, near=near)
    calls = sorted(whole.calls)
    return seen.found(applies=len(whole.gradients[0]), calls=calls, summaries=whole.summaries)


def _look_at_tail(seen: _Comparison) -> _Comparison:
    """What is written after the last apply, from the new weights."""
    if not seen.whole.goes_on:
        return seen
    metrics = metrics_by_variable()
    late = {
        key: variable
        for key, variable in seen.whole.late.items()
        if key not in metrics and not judge.is_seed(variable)
    }
    refusal = tail_refusal(seen.traits, seen.pieces(), seen.rules.applies, late, seen.near)
    if refusal is not None:
        raise Refused(refusal)
    return seen.found(late=late)


def _look_at_parts(seen: _Comparison) -> _Comparison:
    """The samples in slices: whether the step takes the same course."""
    parts = seen.run_parts(notes=True)
    judge.refuse_other_course(seen.whole, parts, seen.samples)
    judge.refuse_no_numbers(seen.whole, parts, seen.near)
    return dataclasses.replace(seen, parts=parts)


def _look_at_draws(seen: _Comparison) -> _Comparison:
    """What it draws, and which axes of that are the samples'."""
    whole, parts = seen.whole, seen.parts
    draws = read_draws([*whole.draws, *parts.draws], [*whole.sizes, *parts.sizes])
    seeds = [variable for variable, _, _ in whole.written.values() if judge.is_seed(variable)]
    seen = seen.found(draws=draws, seeds=seeds)
    if any(draw.way == "apart" for draw in draws):
        # Their noise was not comparable as long as that was not known.
        whole, parts = seen.run_whole(notes=True), seen.run_parts(notes=True)
        seen = dataclasses.replace(seen, whole=whole, parts=parts)
    return seen


def _look_at_terms(seen: _Comparison) -> _Comparison:
    """The terms of its loss: means, sums, or what couples samples."""
    terms, coupled = judge.term_rules(seen.whole, seen.parts, seen.near)
    totals = judge.total_counts(seen.whole, seen.parts)
    seen = dataclasses.replace(seen, totals=totals)
    seen = seen.found(terms=terms, counts=bool(totals), coupled=coupled)
    if totals or any(terms):
        # The gradients of these slices were not corrected for it.
        parts = dataclasses.replace(seen.run_parts(), decisions=seen.parts.decisions)
        seen = dataclasses.replace(seen, parts=parts)
    return seen


def _look_at_gradients(seen: _Comparison) -> _Comparison:
    gradients = judge.gradient_rules(seen.whole, seen.parts, seen.near)
    judge.refuse_unshown(seen.rules.terms, gradients, seen.whole, seen.parts)
    return seen.found(gradients=gradients)


def _look_at_rows_of_noise(seen: _Comparison) -> _Comparison:
    """Which draws are other ones in slices: those where each sample can't have its own noise."""

    def agree(scopes: set[str]) -> bool:
        whole, parts = seen.run_whole(by_sample=scopes), seen.run_parts(by_sample=scopes)
        return None not in judge.gradient_rules(whole, parts, seen.near)

    draws = seen.rules.draws
    if not seen.rules.coupled and None not in seen.rules.gradients:
        draws = judge.apart_where_unlike(draws, agree)
    layers = {layer.name for layer in _layers(seen.model)}
    return seen.found(draws=draws, redrawn=judge.redrawn_layers(draws, layers))


def _look_at_own_noise(seen: _Comparison) -> _Comparison:
    """What it draws from generators of Python and NumPy."""
    rules = seen.rules
    # A graph keeps what it drew when it was traced. And a second pass over slices draws again.
    resumes = seen.traits.eager and rules.applies < 2 and not rules.counts and not rules.late
    agree = not rules.coupled and None not in rules.gradients
    known = seen.traits.is_keras_own
    moved = judge.own_noise(seen.whole, seen.parts, agree=agree, resumes=resumes, known=known)
    if not moved:
        return seen
    # What does not agree has its reason.
    return seen.found(redrawn=[*rules.redrawn, *moved], coupled=[])


def _look_at_coupling(seen: _Comparison) -> _Comparison:
    """What mixes the samples of a batch: BatchNorm, losses, a limit to gradients."""
    coupled = list(seen.rules.coupled)
    if None not in seen.rules.gradients:
        coupled += ["the step's clipping of gradients"] if _clips(seen) else []
        if not coupled and judge.decides(seen.whole, seen.parts, seen.near):
            coupled = ["the loss of the step"]
    elif not coupled and not set(seen.whole.moved) & set(seen.rules.redrawn):
        coupled = ["the loss of the step"]
        if not (seen.traits.is_keras_own or seen.whole.batch_norms or seen.whole.draws[0]):
            seen = seen.found(
                gradients=judge.coupled_rules(seen.whole, _run_twice(seen), seen.near)
            )
    return seen.found(coupled=[*seen.whole.batch_norms, *coupled])


def _look_at_what_sleeps(seen: _Comparison) -> _Comparison:
    """What has no weight yet, as a term of the loss before its warm-up: it agrees with anything."""
    later = asleep(seen.variables, seen.whole)
    tiny = tree.map_structure(_woken, seen.tiny)
    given = any(a is not b for a, b in zip(*map(tree.flatten, (tiny, seen.tiny)), strict=True))
    if not (later or given) or None in seen.rules.gradients:
        return seen
    woken = dataclasses.replace(seen, tiny=tiny)
    try:
        whole, parts = woken.run_whole(later=later), woken.run_parts(later=later)
    except (Refused, UnlikeBeforeError):
        raise
    except Exception as error:
        if oom.is_oom(error):
            raise
        return seen  # it does not run with these numbers, so they will never be these
    judge.refuse_other_course(whole, parts, seen.samples)
    terms, coupled = judge.term_rules(whole, parts, seen.near)
    if terms != seen.rules.terms:
        seen, woken = seen.found(terms=terms), woken.found(terms=terms)
        parts = woken.run_parts(later=later)
    if not coupled and None in judge.gradient_rules(whole, parts, seen.near):
        coupled = ["the loss of the step"]
    return seen.found(coupled=list(dict.fromkeys([*seen.rules.coupled, *coupled])))


def _woken(leaf: Any) -> Any:
    """One, for a single number that is zero and may be the weight of something."""
    if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating and leaf.shape.rank == 0 and not leaf:
        return tf.ones_like(leaf)
    return leaf


def _clips(seen: _Comparison) -> bool:
    """Gradients that are cut off when they are large show it only when they are."""
    if not seen.rules.applies or seen.traits.is_keras_own or seen.near.halves:
        return False
    whole, parts = seen.run_whole(factor=_LARGER), seen.run_parts(factor=_LARGER)
    return None in judge.gradient_rules(whole, parts, seen.near)


def _look_at_sparse_rows(seen: _Comparison) -> _Comparison:
    """What sparse gradients have rows for."""
    if all(rows is None for apply in seen.whole.rows[0] for rows in apply):
        return seen
    return seen.found(rows=judge.sparse_rows(seen.whole, _run_twice(seen)))


def _look_at_state(seen: _Comparison) -> _Comparison:
    """What it writes besides its weights: does it come out the same?"""
    unlike = judge.unlike_state(seen.whole, seen.parts, seen.rules.late, seen.near)
    if not unlike:
        return seen
    owner = functools.partial(layer_of, seen.model)
    metrics, layers = judge.owners(unlike, metrics_by_variable(), owner)
    return seen.found(metrics=metrics, coupled=list(dict.fromkeys([*seen.rules.coupled, *layers])))


def _look_at_held_updates(seen: _Comparison) -> _Comparison:
    """The metrics that are to be told of the whole batch at once: how that is put together."""
    losses = list(getattr(getattr(seen.model, "_compile_loss", None), "metrics", ()))
    metrics = list({id(metric): metric for metric in (*seen.rules.metrics, *losses)}.values())
    if not metrics:
        return seen
    unweighted = losses if seen.traits.any_batch_size else []
    seen = seen.found(metrics=metrics, unweighted=unweighted)
    held = judge.held_rules(seen.run_whole(), seen.run_parts(), seen.near)
    if held is None:
        # Told something that slices can't be put together to, each counts for itself.
        coupled = [*seen.rules.coupled, *(metric.name for metric in metrics)]
        return seen.found(metrics=(), unweighted=(), coupled=coupled)
    return seen.found(held=held)


def _look_at_outputs(seen: _Comparison) -> _Comparison:
    """How each of its results is put together."""
    fitting = judge.output_rules(seen.whole, seen.parts, seen.near)
    if any(len(rules) > 1 for rules in fitting) and seen.few > 2:
        # By chance more than one way agrees: cut the samples in another place.
        again = judge.output_rules(seen.whole, seen.run_parts(first=seen.few - 1), seen.near)
        fitting = [
            [rule for rule in rules if rule in others] or rules
            for rules, others in zip(fitting, again, strict=True)
        ]
    still = any(len(rules) > 1 and "last" in rules for rules in fitting)
    results = seen.run_whole(metrics=_metrics(seen.model)).results if still else set()
    return seen.found(outputs=judge.output_ways(fitting, results))


def _changes_again(traits: Traits, tiny: Any) -> list[str]:
    """What a step changes in Python each time, and not the first time only."""
    python = traits.python_state()
    try:
        with own_draws():
            bear(traits, tiny, restores=False)
            return bear(traits, tiny)
    finally:
        python.restore()


def _unlike(data: Any, samples: int, few: int) -> list[int]:
    """A few samples that differ in how much of them counts, where any do."""
    among = min(samples, AMONG)
    heads = [
        (tf.cast(leaf[:among], tf.float32) if leaf.dtype.is_floating else leaf[:among]).numpy()
        for leaf in tree.flatten(data)
        if isinstance(leaf, tf.Tensor)
        and batch.leading(leaf) == samples
        and (leaf.dtype.is_numeric or leaf.dtype.is_bool)
        and leaf.shape.num_elements() <= samples * SMALL_SAMPLE
    ]
    return unlike(heads, among, few)


def _run_twice(seen: _Comparison) -> Run:
    """Run the step on its samples, each of them twice."""
    few = seen.few
    twice = tree.map_structure(
        lambda x: batch.concatenate([x, x]) if batch.leading(x) == few else x, seen.tiny
    )
    return observe(seen.traits, [twice], [2 * few], Rules(), {})


def _layers(model: Any) -> list[Any]:
    return [] if model is None else list(model._flatten_layers())


def _metrics(model: Any) -> list[Any]:
    """The metrics that a step may return results of."""
    if model is not None:
        return list(model.metrics)
    return list({id(metric): metric for metric in metrics_by_variable().values()}.values())


def _trained(model: Any) -> list[Any]:
    return [] if model is None else list(model.trainable_variables)


def _normalizes(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _line(error: BaseException) -> str:
    first = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {first[0][:160]}"
