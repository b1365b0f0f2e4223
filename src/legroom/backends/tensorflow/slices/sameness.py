"""Finding out how a step's slices make up the step: a few samples, whole and in two slices.

Nobody can tell from its code whether a hand-written step takes a mean or a sum, or whether a loss
couples the samples of a batch. So before a step is first sliced it is run, without writing
anything, on a handful of samples: once whole, once in two slices of unequal size. What agrees
tells the rule; what agrees under no rule can't be sliced the same.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends.keras.own_draws import own_draws
from legroom.backends.keras.python_state import PythonState, unbuilt
from legroom.backends.keras.rules import Rules
from legroom.backends.tensorflow.commit.collect import OVERWRITTEN
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.slices.after_apply import tail_refusal
from legroom.backends.tensorflow.slices.draws import Draw, read_draws
from legroom.backends.tensorflow.slices.observe import Run, bear, observe
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.errors import UnlikeBefore

__all__ = ["find_rules"]

# How much larger gradients are made to see whether the step limits them.
_LARGER = 1e6
# So many samples are looked at to choose the few.
_AMONG = 256
_SMALL_SAMPLE = 4096  # entries


def find_rules(
    traits: Traits,
    data: Any,
    model: Any = None,
    too_much: Callable[[int], bool] = lambda samples: False,
) -> Rules:
    """Compare a few samples of a batch, whole and in slices.

    Args:
        traits: The step.
        data: A batch, of which the first samples are used. Nothing is written.
        model: The Keras model, where there is one: its layers are named in what is found.
        too_much: Whether so many samples are known not to fit.
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
            return _compare(traits, data, samples, few, model)
        except UnlikeBefore as error:
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
    norms = [layer.name for layer in model._flatten_layers() if _normalizes(layer)] if model else []
    return Rules(unverified=problem, counts=True, coupled=norms)


def _compare(traits: Traits, data: Any, samples: int, few: int, model: Any) -> Rules:
    tiny = batch.pick(data, _unlike(data, samples, few), samples)
    pieces = [batch.slice_batch(tiny, 0, 1, few), batch.slice_batch(tiny, 1, few, few)]
    sizes = [1, few - 1]
    whole = observe(traits, [tiny], [few], Rules(), {})
    if whole.refusal is not None:
        return Rules(refusal=whole.refusal)
    if traits.eager and whole.python and (changed := _changes_again(traits, tiny)):
        return Rules(
            refusal=f"it changes {', '.join(changed)}, which each slice would change again"
        )
    rules = Rules(applies=len(whole.gradients[0]))
    near = _Near(whole)
    if whole.goes_on:
        metrics = _metrics()
        rules.late = {
            key: variable
            for key, variable in whole.late.items()
            if key not in metrics and not _is_seed(variable)
        }
        rules.refusal = tail_refusal(traits, pieces, rules.applies, rules.late, near)
        if rules.refusal is not None:
            return rules
    parts = observe(traits, pieces, sizes, rules, {})
    if refusal := _refusal(whole, parts, samples):
        rules.refusal = refusal
        return rules
    rules.draws = read_draws([*whole.draws, *parts.draws], [few, *sizes])
    rules.seeds = [variable for variable, _, _ in whole.written.values() if _is_seed(variable)]
    if any(draw.way == "apart" for draw in rules.draws):
        # Now that it is known which axes of their noise are the samples'.
        whole = observe(traits, [tiny], [few], rules, {})
        parts = observe(traits, pieces, sizes, rules, {})
    rules.counts = bool(whole.counts[0])
    rules.terms, coupled = _term_rules(whole, parts, near)
    totals = {term: sum(float(counts[term]) for counts in parts.counts) for term in whole.counts[0]}
    if totals or any(rules.terms) or _sums(parts):
        parts = observe(traits, pieces, sizes, rules, totals)
    rules.gradients, mixed = _gradient_rules(whole, parts, near)
    if not mixed and not coupled:
        rules.draws = _try_rows(
            rules,
            lambda where: _rows_agree(where, traits, [tiny], pieces, sizes, rules, totals, near),
        )
    rules.redrawn = _places(rules.draws, model)
    rules.coupled = [*whole.batch_norms, *dict.fromkeys(coupled)]
    if mixed and not coupled:
        rules.coupled.append("the loss of the step")
    if not mixed and rules.applies and not traits.is_keras_own and not near.halves:
        # Gradients that are cut off when they are large show it only when they are.
        larger = [
            observe(traits, [tiny], [few], rules, {}, factor=_LARGER),
            observe(traits, pieces, sizes, rules, totals, factor=_LARGER),
        ]
        if _gradient_rules(larger[0], larger[1], near)[1]:
            rules.coupled.append("the step's clipping of gradients")
    if any(n is not None for apply in whole.rows[0] for n in apply):
        _judge_rows(rules, whole, observe(traits, [_twice(tiny)], [2 * few], Rules(), {}))
    _judge_state(rules, whole, parts, model, near)
    losses = getattr(model, "_compile_loss", None)
    for metric in getattr(losses, "metrics", ()):
        if not any(metric is other for other in rules.metrics):
            rules.metrics.append(metric)
        if traits.any_batch_size:
            rules.unweighted.append(metric)
    if rules.refusal is None and rules.metrics:
        held = [
            observe(traits, [tiny], [few], rules, {}).held[0],
            *observe(traits, pieces, sizes, rules, totals).held,
        ]
        rules.held = [_held_rules([calls[k] for calls in held], few, sizes, near)
                      for k in range(len(held[0]))]  # fmt: skip
        if any(not rule for call in rules.held for rule in call):
            # Told something that slices can't be put together to, each counts for itself.
            rules.coupled += [metric.name for metric in rules.metrics]
            rules.metrics, rules.held, rules.unweighted = [], [], []
    if rules.refusal is None:
        _judge_outputs(rules, traits, tiny, few, whole, parts, totals, near, model)
    return rules


def _changes_again(traits: Traits, tiny: Any) -> list[str]:
    """What a step changes in Python each time, and not the first time only."""
    python = PythonState(traits.origin)
    try:
        with own_draws():
            bear(traits, tiny, restores=False)
            return bear(traits, tiny)
    finally:
        python.restore()


def _refusal(whole: Run, parts: Run, samples: int) -> str | None:
    """Why slicing is out of the question, if it is."""
    for part in parts.gradients:
        if len(part) != len(whole.gradients[0]):
            return "it applies its optimizers a different number of times on a part of its batch"
    for part in parts.terms:
        if len(part) != len(whole.terms[0]):
            return "it computes other losses on a part of its batch"
    for k, drawn in enumerate(whole.draws[0]):
        shape = drawn.shape
        fixed = all(k < len(part) and part[k].shape == shape for part in parts.draws)
        if fixed and shape and shape[0] == samples:
            return (
                f"it draws noise of a fixed size {shape}, whatever the size of its batch "
                f"(use the batch's own: tf.shape(x)[0] instead of {samples})"
            )
    return None


def _try_rows(rules: Rules, agree: Callable[[set[str]], bool]) -> list[Draw]:
    """The draws, "apart" where the rows of the whole batch are not the same step in slices.

    So it is with numbers that are sorted, or that are not in the order of the samples.
    """
    scopes = {draw.scope for draw in rules.draws if draw.way == "rows"}
    if not scopes or agree(scopes):
        return rules.draws
    apart = scopes if len(scopes) == 1 else {s for s in scopes if not agree({s})} or scopes
    return [
        dataclasses.replace(draw, way="apart") if draw.scope in apart else draw
        for draw in rules.draws
    ]


def _rows_agree(
    scopes: set[str],
    traits: Traits,
    whole: Sequence[Any],
    pieces: Sequence[Any],
    sizes: list[int],
    rules: Rules,
    totals: dict[int, Any],
    near: _Near,
) -> bool:
    """Whether slices make up the step where each sample has noise of its own."""
    runs = [
        observe(traits, whole, [sum(sizes)], rules, {}, by_sample=scopes),
        observe(traits, pieces, sizes, rules, totals, by_sample=scopes),
    ]
    return not _gradient_rules(runs[0], runs[1], near)[1]


def _term_rules(whole: Run, parts: Run, near: _Near) -> tuple[list[str | None], list[str]]:
    """For each loss term: a mean, a sum, or one that couples samples."""
    rules: list[str | None] = []
    coupled: list[str] = []
    for k, value in enumerate(whole.terms[0]):
        values = [part[k] for part in parts.terms]
        if k in whole.counts[0] or np.ndim(value) > 0:
            rules.append(None)  # told by what it counts, or by the gradients
        elif near(value, _mean(values, parts.sizes)):
            rules.append(None)
        elif near(value, sum(values)):
            rules.append("sum")
        else:
            rules.append(None)
            coupled.append(whole.names[k])
    return rules, coupled


def _gradient_rules(whole: Run, parts: Run, near: _Near) -> tuple[list[str], bool]:
    """For each apply: whether its gradients are means or sums, and whether any is neither."""
    rules: list[str] = []
    mixed = False
    for j, gradients in enumerate(whole.gradients[0]):
        fits = {"mean": True, "sum": True}
        largest = max((np.abs(g).max() for g in gradients if g is not None and g.size), default=0)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            pieces = [part[j][i] for part in parts.gradients]
            for rule, together in (("mean", _mean(pieces, parts.sizes)), ("sum", sum(pieces))):
                fits[rule] = fits[rule] and near(gradient, together, floor=largest)
        rules.append("mean" if fits["mean"] or not fits["sum"] else "sum")
        mixed = mixed or not any(fits.values())
    return rules, mixed


def _judge_state(rules: Rules, whole: Run, parts: Run, model: Any, near: _Near) -> None:
    """What the step writes besides its weights: does it come out the same?"""
    metrics = None
    for key, (variable, before, after) in whole.written.items():
        if key in whole.trained or key in rules.late or _is_seed(variable):
            continue
        other = parts.written.get(key)
        if other is not None and near(after, other[2], floor=np.abs(before).max(initial=0)):
            continue
        if metrics is None:
            metrics = _metrics()
        owner = metrics.get(key)
        if owner is not None:
            if not any(owner is metric for metric in rules.metrics):
                rules.metrics.append(owner)
            continue
        layer = _owner(model, variable)
        if layer is not None:
            if layer not in rules.coupled:
                rules.coupled.append(layer)
        else:
            rules.refusal = (
                f"it writes a variable of its own, {variable.name!r}, "
                "which slices would write several times"
            )


def _judge_rows(rules: Rules, whole: Run, twice: Run) -> None:
    """Whether a sparse gradient has rows for each sample, or one for each entry that is met."""
    for once, again in zip(whole.rows[0], twice.rows[0], strict=True):
        kinds: list[str | None] = []
        for n, m in zip(once, again, strict=True):
            if n is None or m is None:
                kinds.append(None)
            elif m == n:  # the same samples again bring no new row: rows of an entry are one
                kinds.append("entries")
            elif m == 2 * n:
                kinds.append("samples")
            else:
                rules.refusal = "it has a sparse gradient with rows for samples and for others"
                return
        rules.rows.append(kinds)


def _judge_outputs(
    rules: Rules,
    traits: Traits,
    tiny: Any,
    few: int,
    whole: Run,
    parts: Run,
    totals: dict[int, Any],
    near: _Near,
    model: Any,
) -> None:
    """How each of the step's results is put together."""
    fits = [
        _output_rules(value, [outputs[i] for outputs in parts.outputs], few, parts.sizes, near)
        for i, value in enumerate(whole.outputs[0])
    ]
    if any(len(rule) > 1 for rule in fits) and few > 2:
        # By chance more than one way agrees: cut the samples in another place.
        pieces = [
            batch.slice_batch(tiny, 0, few - 1, few),
            batch.slice_batch(tiny, few - 1, few, few),
        ]
        again = observe(traits, pieces, [few - 1, 1], rules, totals)
        for i, value in enumerate(whole.outputs[0]):
            others = [outputs[i] for outputs in again.outputs]
            both = [
                rule
                for rule in _output_rules(value, others, few, again.sizes, near)
                if rule in fits[i]
            ]
            fits[i] = both or fits[i]
    if any(len(rule) > 1 and "last" in rule for rule in fits):
        # Still: a metric's running result is the last one, and anything else is not.
        known = _all_metrics(model)
        results = observe(traits, [tiny], [few], rules, {}, metrics=known).results
        fits = [["last"] if i in results else rule for i, rule in enumerate(fits)]
    rules.outputs = [rule[0] if rule else "mean" for rule in fits]


def _held_rules(calls: list[list[Any]], few: int, sizes: list[int], near: _Near) -> list[str]:
    """How the arguments of a held update are put together."""
    whole, *parts = calls
    fits = [
        _output_rules(value, [part[i] for part in parts], few, sizes, near)
        for i, value in enumerate(whole)
    ]
    # Where nothing agrees a mean is as good as any, if it can be taken.
    alike = [len({np.shape(part[i]) for part in parts}) == 1 for i in range(len(whole))]
    return [
        rule[0] if rule else "mean" if same else "" for rule, same in zip(fits, alike, strict=True)
    ]


def _output_rules(
    value: Any, parts: list[Any], few: int, sizes: list[int], near: _Near
) -> list[str]:
    """The ways in which a result of the slices gives that of the whole, the likeliest first."""
    if value is None:
        return ["last"]
    entry = np.shape(value)[1:]
    if np.shape(value)[:1] == (few,) and [np.shape(part) for part in parts] == [
        (size, *entry) for size in sizes
    ]:
        return ["concat"]
    kind = np.asarray(value).dtype
    if not np.issubdtype(kind, np.number):
        return ["last"]
    together = {"mean": _mean(parts, sizes), "last": parts[-1], "sum": sum(parts)}
    order = ("sum", "last") if np.issubdtype(kind, np.integer) else ("mean", "last", "sum")
    return [rule for rule in order if near(value, together[rule])]


class _Near:
    """Equality up to rounding, by the precision the step computes in."""

    def __init__(self, whole: Run) -> None:
        halves = keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16")
        halves = halves or any(
            getattr(value, "dtype", None) == np.float16 for value in whole.terms[0]
        )
        self.halves = halves
        self._tolerance = 5e-2 if halves else 2e-4

    def __call__(self, one: Any, other: Any, floor: float = 0.0) -> bool:
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if one.shape != other.shape:
            return False
        if one.size == 0:
            return True
        scale = max(np.abs(one).max(), np.abs(other).max(), 1e-3 * float(floor), 1e-12)
        return bool(np.abs(one - other).max() <= self._tolerance * scale)


def _trained(model: Any) -> list[Any]:
    return [] if model is None else list(model.trainable_variables)


def _normalizes(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _unlike(data: Any, samples: int, few: int) -> list[int]:
    """A few samples that differ in how much of them is zero, where any do: masks and lengths."""
    among = min(samples, _AMONG)
    filled = np.zeros(among)
    for leaf in tree.flatten(data):
        if not isinstance(leaf, tf.Tensor) or batch.leading(leaf) != samples:
            continue
        # Images have no lengths, and are long to look at.
        if leaf.dtype.is_numeric and leaf.shape.num_elements() <= samples * _SMALL_SAMPLE:
            head = leaf[:among].numpy().astype(np.float32)
            filled += (head != 0).reshape(among, -1).sum(axis=1)
    order = np.argsort(filled, kind="stable")
    picked = [int(order[i]) for i in np.linspace(0, among - 1, few).round().astype(int)]
    return sorted(picked)


def _twice(data: Any) -> Any:
    samples = batch.batch_size(data)
    return tree.map_structure(
        lambda x: batch.concatenate([x, x]) if batch.leading(x) == samples else x, data
    )


def _mean(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    return sum(value * (size / sum(sizes)) for value, size in zip(values, sizes, strict=True))


def _sums(parts: Run) -> bool:
    """Whether a term was corrected already by its own reduction."""
    return bool(parts.terms and parts.terms[0])


def _all_metrics(model: Any) -> list[Any]:
    """The metrics that a step may return results of."""
    if model is not None:
        return list(model.metrics)
    return list({id(metric): metric for metric in _metrics().values()}.values())


def _metrics() -> dict[int, Any]:
    """The metric that owns each variable, of all metrics alive in this process."""
    owners: dict[int, Any] = {}
    for thing in gc.get_objects():
        # Not isinstance: that would wake up lazy objects of other libraries.
        if issubclass(type(thing), keras.metrics.Metric):
            for variable in getattr(thing, "_variables", ()):
                owners[id(variable._value)] = thing
    return owners


def _is_seed(variable: Any) -> bool:
    """Whether it is the state of a Keras generator of seeds."""
    return "seed_generator_state" in variable.name


def _places(draws: Sequence[Draw], model: Any) -> list[str]:
    """The layers that draw other numbers in slices."""
    layers = {layer.name for layer in model._flatten_layers()} if model is not None else set()
    found = []
    for draw in draws:
        if draw.way == "apart":
            named = [part for part in draw.scope.split("/") if part in layers]
            found.append(named[-1] if named else "the step")
    return list(dict.fromkeys(found))


def _owner(model: Any, variable: Any) -> str | None:
    """The layer that a variable belongs to."""
    for layer in model._flatten_layers() if model is not None else ():
        if any(own._value is variable for own in layer._non_trainable_variables):
            return str(layer.name)
    return None


def _line(error: BaseException) -> str:
    first = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {first[0][:160]}"
