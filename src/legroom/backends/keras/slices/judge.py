"""Judging what runs of a step showed: which rule makes the whole batch's step of its slices.

Each function looks at one thing: it returns the rules that agree for it, or says what agrees under
no rule, or refuses. Pure: records and NumPy arrays in, values out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from legroom.backends.keras.slices.rules import Draw, Refused, Unshown
from legroom.backends.keras.slices.runs import Run

__all__ = ["Near", "apart_where_unlike", "coupled_rules", "decides", "gradient_rules", "halves",
           "held_rules", "is_seed", "output_rules", "output_ways", "own_noise", "owners",
           "redrawn_layers",
           "refuse_no_numbers", "refuse_other_course", "refuse_unshown", "sparse_rows",
           "term_rules", "total_counts", "unlike_state"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Near:
    """Equality up to rounding.

    Attributes:
        halves: Whether the step computes in half precision.
    """

    halves: bool = False

    @classmethod
    def of(cls, whole: Run, compute_dtype: str) -> Near:
        """By the precision that a step computes in: its layers, or its losses."""
        kinds = {compute_dtype, *(str(getattr(x, "dtype", None)) for x in whole.terms[0])}
        return cls(not kinds.isdisjoint(("float16", "bfloat16")))

    def __call__(self, one: Any, other: Any, floor: float = 0.0) -> bool:
        """Whether two arrays are equal, on the scale of the larger one.

        Args:
            one: An array.
            other: Another one.
            floor: What is a thousandth of this is as good as nothing.
        """
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if one.shape != other.shape:
            return False
        if one.size == 0:
            return True
        scale = max(np.abs(one).max(), np.abs(other).max(), 1e-3 * float(floor), 1e-12)
        return bool(np.abs(one - other).max() <= (5e-2 if self.halves else 2e-4) * scale)


def refuse_other_course(whole: Run, parts: Run, samples: int) -> None:
    """Refuse a step that takes another course on a part of its batch.

    Args:
        whole: A few samples at once.
        parts: The same samples in slices.
        samples: How many there are in the batch that these few were taken from.
    """
    if any(len(part) != len(whole.gradients[0]) for part in parts.gradients):
        raise Refused(
            "it applies its optimizers a different number of times on a part of its batch"
        )
    if any(len(part) != len(whole.terms[0]) for part in parts.terms):
        raise Refused("it computes different losses on part of its batch")
    for k, drawn in enumerate(whole.draws[0]):
        shape = drawn.shape
        fixed = all(k < len(part) and part[k].shape == shape for part in parts.draws)
        if fixed and shape and shape[0] == samples:
            raise Refused(
                f"it draws noise of a fixed size {shape}, whatever the size of its batch "
                f"(use the batch's own: tf.shape(x)[0] instead of {samples})"
            )


def refuse_no_numbers(whole: Run, parts: Run, near: Near) -> None:
    """Refuse a step whose losses or gradients are infinite or not a number: nothing equals those.

    Args:
        whole: A few samples at once.
        parts: The same samples in slices.
        near: Tells what is equal: gradients in half precision may overflow now and then.
    """
    for run, where in ((whole, "on the samples that were tried"), (parts, "on a part of them")):
        if not _are_finite(run.terms):
            what = "its loss is"
        elif not near.halves and not _are_finite(run.gradients):
            what = "its gradients are"
        else:
            continue
        raise Refused(
            f"{what} infinite or not a number (NaN) {where}, so slices can't be compared with the "
            "whole batch"
        )


def own_noise(whole: Run, parts: Run, *, agree: bool, resumes: bool, known: bool) -> list[str]:
    """The generators of Python and NumPy that draw other numbers in slices than for the batch.

    Args:
        whole: A few samples at once.
        parts: The same samples in slices.
        agree: Whether the slices gave the same gradients: each drew on where the one before ended.
        resumes: Whether they do so in a training, too.
        known: Whether it is known without a comparison how slices are put together.

    Raises:
        Refused: Where that is not known.
    """
    moved = [name for name in whole.moved if name in parts.moved]
    if not moved or (agree and resumes):
        return []
    if not (agree or known):
        raise Refused(
            f"it draws its own random numbers ({', '.join(moved)}), and slices would draw "
            "different ones"
        )
    return moved


def term_rules(whole: Run, parts: Run, near: Near) -> tuple[list[str | None], list[str]]:
    """For each loss term "sum", or None for a mean or what tells itself.

    Returns:
        The rules, and the names of the terms that are neither: they couple samples.
    """
    rules: list[str | None] = []
    coupled: list[str] = []
    for k, value in enumerate(whole.terms[0]):
        values = [part[k] for part in parts.terms]
        rule = None
        # Others are told by what they count, or by the gradients.
        if k not in whole.counts[0] and np.ndim(value) == 0:
            fitting = _fitting(value, values, parts.sizes, near)
            if not fitting:
                coupled.append(whole.names[k])
            elif "mean" not in fitting:
                rule = "sum"
        rules.append(rule)
    return rules, list(dict.fromkeys(coupled))


def total_counts(whole: Run, parts: Run) -> dict[int, float]:
    """What the whole batch's loss terms are divided by, where that is not the samples."""
    return {term: sum(float(counts[term]) for counts in parts.counts) for term in whole.counts[0]}


def gradient_rules(whole: Run, parts: Run, near: Near) -> list[str | None]:
    """For each apply: whether its gradients are "mean"s or "sum"s; None where neither fits all."""
    rules: list[str | None] = []
    for j, gradients in enumerate(whole.gradients[0]):
        fitting = ["mean", "sum"]
        largest = max((np.abs(g).max() for g in gradients if g is not None and g.size), default=0)
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                pieces = [part[j][i] for part in parts.gradients]
                agree = _fitting(gradient, pieces, parts.sizes, near, floor=largest)
                fitting = [rule for rule in fitting if rule in agree]
        rules.append(fitting[0] if fitting else None)
    return rules


def refuse_unshown(
    terms: Sequence[str | None], gradients: Sequence[str | None], whole: Run, parts: Run
) -> None:
    """Refuse to go by samples of which too few count.

    A loss that a step divides by the entries that count in it may have none in one of the slices:
    then the mean over all of them looks like a sum. With none at all it looks like anything.

    Args:
        terms: The rules of loss terms.
        gradients: The rules of gradients.
        whole: A few samples at once.
        parts: The same samples in slices.

    Raises:
        Unshown: If it is so.
    """
    for k, rule in enumerate(terms):
        if rule == "sum" and _is_empty([[part[k]] for part in parts.terms]):
            raise Unshown(_ONE_PART)
    for j, rule in enumerate(gradients):
        if rule == "sum" and _is_empty([part[j] for part in parts.gradients]):
            raise Unshown(_ONE_PART)
    for made in whole.gradients[0]:
        if any(gradient is not None for gradient in made) and not _largest(made):
            raise Unshown(
                "the samples that were tried have no gradients, so slices can't be compared with "
                "the whole batch"
            )


_ONE_PART = (
    "only one part of the samples that were tried has a loss or gradients, so whether those of "
    "slices are means or sums can't be told"
)


def _is_empty(slices: Sequence[Sequence[Any]]) -> bool:
    """Whether a slice has nothing, where others have something."""
    sizes = list(map(_largest, slices))
    return max(sizes) > 0 and min(sizes) <= 1e-6 * max(sizes)


def _largest(values: Sequence[Any]) -> float:
    return max((float(np.abs(x).max(initial=0)) for x in values if x is not None), default=0.0)


def halves(whole: Run, other: Run) -> bool:
    """Whether all gradients of another run are half of those of the whole batch.

    Nothing is rounded by a half, so that half precision needs no tolerance of its own.
    """
    near = Near()
    pairs = [
        (g, h)
        for one, two in zip(whole.gradients[0], other.gradients[0], strict=True)
        for g, h in zip(one, two, strict=True)
        if g is not None
    ]
    largest = max((np.abs(g).max() for g, _ in pairs if g.size), default=0)
    return all(near(g / 2, h, floor=largest / 2) for g, h in pairs)


def coupled_rules(whole: Run, twice: Run, near: Near) -> list[str]:
    """For each apply of a step that mixes its samples: whether its gradients are means or sums.

    Args:
        whole: A few samples.
        twice: The same samples, each of them twice: a mean stays, a sum doubles.
        near: Tells what is equal.

    Raises:
        Refused: Where neither is so. A sum over samples with a regularizer beside it is no mixing
            of samples, and slices would count one of the two parts wrong.
    """
    rules = []
    for gradients, doubled in zip(whole.gradients[0], twice.gradients[0], strict=True):
        pairs = [(g, d) for g, d in zip(gradients, doubled, strict=True) if g is not None]
        largest = max((np.abs(g).max() for g, _ in pairs if g.size), default=0)
        fitting = [
            rule
            for rule, times in (("mean", 1), ("sum", 2))
            if all(near(times * g, d, floor=largest) for g, d in pairs)
        ]
        if not fitting:
            raise Refused(
                "its gradients are neither means nor sums over the samples of a batch, as with a "
                "loss that is a sum over the samples, plus a regularizer"
            )
        rules.append(fitting[0])
    return rules


def decides(whole: Run, parts: Run, near: Near) -> bool:
    """Whether gradients depend on a choice that is made by a number of the batch as a whole.

    A floor under a mean, say. Such a choice has no axis for the samples, and what it is made by is
    another number in slices, which may fall on the other side one day.
    """
    for one, *others in zip(*whole.decisions, *parts.decisions, strict=False):
        alike = all((one.op, one.shape) == (other.op, other.shape) for other in others)
        for k, number in enumerate(one.by if alike else ()):
            if not all(near(number, other.by[k]) for other in others):
                return True
    return False


def sparse_rows(whole: Run, twice: Run) -> list[list[str | None]]:
    """For each apply and variable, whether a sparse gradient has rows for "samples" or "entries".

    Args:
        whole: A few samples.
        twice: The same samples, each of them twice.
    """

    def kind(once: int | None, again: int | None) -> str | None:
        if once is None or again is None:
            return None
        if again == once:  # the same samples again bring no new row: rows of an entry are one
            return "entries"
        if again == 2 * once:
            return "samples"
        raise Refused("one of its sparse gradients mixes rows of samples with other rows")

    return [
        [kind(n, m) for n, m in zip(once, again, strict=True)]
        for once, again in zip(whole.rows[0], twice.rows[0], strict=True)
    ]


def is_seed(variable: Any) -> bool:
    """Whether it is the state of a Keras generator of seeds."""
    return "seed_generator_state" in variable.name


def unlike_state(whole: Run, parts: Run, late: Collection[int], near: Near) -> dict[int, Any]:
    """By id, the variables that slices leave with another value than the whole batch does.

    What optimizers and generators of seeds look after is not among them.

    Args:
        whole: A few samples at once.
        parts: The same samples in slices.
        late: The ids of the variables that are written once, after all slices.
        near: Tells what is equal.
    """

    def same(key: int, before: Any, after: Any) -> bool:
        other = parts.written.get(key)
        return other is not None and near(after, other[2], floor=np.abs(before).max(initial=0))

    return {
        key: variable
        for key, (variable, before, after) in whole.written.items()
        if not (key in whole.trained or key in late or is_seed(variable))
        and not same(key, before, after)
    }


def owners(
    variables: Mapping[int, Any],
    metrics: Mapping[int, Any],
    layer_of: Callable[[Any], str | None],
) -> tuple[list[Any], list[str]]:
    """The metrics and the names of the layers that variables belong to; refuses the step's own.

    Args:
        variables: By their ids.
        metrics: The metric of each variable that has one, by the variable's id.
        layer_of: The name of a variable's layer.
    """
    of_metrics: dict[int, Any] = {}
    layers: list[str] = []
    for key, variable in variables.items():
        if key in metrics:
            of_metrics[id(metrics[key])] = metrics[key]
        elif (layer := layer_of(variable)) is not None:
            layers.append(layer)
        else:
            raise Refused(
                f"it writes a variable of its own, {variable.name!r}, "
                "which slices would write several times"
            )
    return list(of_metrics.values()), list(dict.fromkeys(layers))


def output_rules(whole: Run, parts: Run, near: Near) -> list[list[str]]:
    """For each result of the step, the rules that give it, the likeliest first."""
    return [
        _result_rules(value, [outputs[i] for outputs in parts.outputs], parts.sizes, near)
        for i, value in enumerate(whole.outputs[0])
    ]


def output_ways(fitting: Sequence[Sequence[str]], results: Collection[int]) -> list[str]:
    """How each result of the step is put together, of the rules that give it.

    Args:
        fitting: For each result, the rules, as `output_rules` has them.
        results: Which of them are metrics' running results. Where all samples that were tried give
            the same, several rules agree; such a result is the last one, and no other is.
    """
    return [
        "last" if len(rules) > 1 and i in results else (rules[0] if rules else "mean")
        for i, rules in enumerate(fitting)
    ]


def held_rules(whole: Run, parts: Run, near: Near) -> list[list[str]] | None:
    """For each held update, how each of its arguments is put together; None if one can't be."""
    rules: list[list[str]] = []
    for k, arguments in enumerate(whole.held[0]):
        rules.append([])
        for value, *values in zip(arguments, *(held[k] for held in parts.held), strict=True):
            fitting = _result_rules(value, values, parts.sizes, near)
            # Where nothing agrees a mean is as good as any, if it can be taken.
            if not fitting and len({np.shape(part) for part in values}) > 1:
                return None
            rules[k].append(fitting[0] if fitting else "mean")
    return rules


def apart_where_unlike(draws: Sequence[Draw], agree: Callable[[set[str]], bool]) -> Sequence[Draw]:
    """The draws, "apart" where the rows of the whole batch are not the same step in slices.

    So it is with numbers that are sorted, or that are not in the order of the samples.

    Args:
        draws: The draws.
        agree: Whether slices make up the step if the noise in these scopes is cut in rows.
    """
    scopes = {draw.scope for draw in draws if draw.way == "rows"}
    if not scopes or agree(scopes):
        return draws
    apart = scopes if len(scopes) == 1 else {s for s in scopes if not agree({s})} or scopes
    return [dataclasses.replace(d, way="apart") if d.scope in apart else d for d in draws]


def redrawn_layers(draws: Iterable[Draw], layers: Collection[str]) -> list[str]:
    """The layers that draw other numbers in slices, of all layers that there are."""
    found = []
    for draw in draws:
        if draw.way == "apart":
            named = [part for part in draw.scope.split("/") if part in layers]
            found.append(named[-1] if named else "the step")
    return list(dict.fromkeys(found))


def _are_finite(values: Any) -> bool:
    """Whether all numbers in nested lists of arrays are finite."""
    if isinstance(values, list):
        return all(map(_are_finite, values))
    return values is None or bool(np.isfinite(np.asarray(values, np.float64)).all())


def _result_rules(value: Any, parts: Sequence[Any], sizes: Sequence[int], near: Near) -> list[str]:
    if value is None:
        return ["last"]
    shape = np.shape(value)
    slices = [(size, *shape[1:]) for size in sizes]
    if shape[:1] == (sum(sizes),) and [np.shape(part) for part in parts] == slices:
        return ["concat"]
    kind = np.asarray(value).dtype
    if not np.issubdtype(kind, np.number):
        return ["last"]
    fitting = _fitting(value, parts, sizes, near)
    fitting += ["last"] if near(value, parts[-1]) else []
    order = ("sum", "last") if np.issubdtype(kind, np.integer) else ("mean", "last", "sum")
    return [rule for rule in order if rule in fitting]


def _fitting(
    value: Any, parts: Sequence[Any], sizes: Sequence[int], near: Near, floor: float = 0.0
) -> list[str]:
    """Whether the slices' values weighted by samples, or simply added, give that of the whole."""
    mean = sum(part * (size / sum(sizes)) for part, size in zip(parts, sizes, strict=True))
    together = {"mean": mean, "sum": sum(parts)}
    return [rule for rule, made in together.items() if near(value, made, floor)]
