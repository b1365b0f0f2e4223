"""A step run on a few samples, in slices or whole, without leaving a trace of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends import patches
from legroom.backends.keras.slices.held_metrics import holding, noting_results, results_among
from legroom.backends.keras.slices.loss_scale import Scale, scaling
from legroom.backends.keras.slices.own_draws import own_draws
from legroom.backends.keras.slices.rules import Rules
from legroom.backends.keras.slices.runs import Run
from legroom.backends.tensorflow.commit.collect import Applied, Since, collecting, inner_variable
from legroom.backends.tensorflow.effects.outside import nothing_outside
from legroom.backends.tensorflow.effects.side_effects import SideEffects, on_trial
from legroom.backends.tensorflow.effects.write_log import logging_writes, writing_only
from legroom.backends.tensorflow.slices.latent import awake, noting
from legroom.backends.tensorflow.slices.neutral import neutral
from legroom.backends.tensorflow.step.traits import Traits

__all__ = ["bear", "observe", "to_array"]


def observe(
    traits: Traits,
    pieces: Sequence[Any],
    sizes: list[int],
    rules: Rules,
    totals: dict[int, Any],
    *,
    factor: float = 1.0,
    metrics: Sequence[Any] = (),
    by_sample: Collection[str] = (),
    later: Sequence[tuple[Any, Any]] = (),
    notes: bool = False,
) -> Run:
    """Run the step eagerly on some slices, one after another, and undo all it did.

    Args:
        traits: The step.
        pieces: The slices.
        sizes: Their samples.
        rules: What is known so far.
        totals: The denominators of loss terms over all slices.
        factor: Make all gradients that the step takes larger by this.
        metrics: Metrics whose results are to be known again among the step's outputs.
        by_sample: The scopes of draws that are made another for each sample.
        later: Variables that are to hold another number meanwhile, each with the number.
        notes: Note its decisions, and whether counts of steps are read, which takes time.
    """
    run = Run(sizes)
    effects = SideEffects()
    python = traits.python_state()
    with own_draws() as draws, nothing_outside(), awake(later), logging_writes() as log:
        try:
            for piece, size in zip(pieces, sizes, strict=True):
                gradients: list[list[Any]] = []
                rows: list[list[int | None]] = []
                since = Since()

                share = tf.constant(size / sum(sizes)) if len(sizes) > 1 else None
                scale = Scale(share, rules.terms, totals)

                def catch(
                    call: Applied,
                    into: list[list[Any]] = gradients,
                    scale: Scale = scale,
                    part: float = size / sum(sizes),
                    rows: list[list[int | None]] = rows,
                    since: Since = since,
                ) -> None:
                    count = inner_variable(call.optimizer._iterations)
                    if latent is not None and not into and latent.has_read(count):
                        run.counts_read.append(count)
                    since.begin(call)
                    run.refusal = run.refusal or call.refusal
                    run.late.clear()
                    rows.append([_rows(g) for g in call.gradients])
                    weighted = id(call.optimizer) in scale.weighted
                    into.append(
                        [
                            None if g is None else to_array(g) / (part if weighted else 1.0)
                            for g in call.gradients
                        ]
                    )
                    kept = [*call.variables, *call.optimizer.variables]
                    run.trained.update(id(inner_variable(v)) for v in kept)

                def may(variable: Any, gradients: list[list[Any]] = gradients) -> bool:
                    if gradients:
                        run.late[id(variable)] = variable
                    return len(gradients) < rules.applies or id(variable) not in rules.late

                def body(
                    inputs: Any, scale: Scale = scale, catch: Any = catch, may: Any = may
                ) -> Any:
                    with (
                        logging_writes(log),
                        on_trial(effects),
                        writing_only(may),
                        scaling(scale, unscaled=True),
                        collecting(catch),
                    ):
                        return traits.call(inputs)

                with (
                    neutral(rules.draws, sum(sizes[: len(run.outputs)]), by_sample) as seen,
                    holding(rules.metrics, rules.unweighted) as held,
                    noting_results(metrics) as results,
                    _larger_gradients(factor),
                    noting() if notes else contextlib.nullcontext() as latent,
                ):
                    try:
                        outputs = traits.run(body, piece)
                    finally:
                        run.goes_on = since.end() or run.goes_on
                run.rows.append(rows)
                leaves = tree.flatten(outputs)
                run.results = results_among(leaves, results)
                run.held.append([[to_array(x) for x in tree.flatten(call)] for call in held.calls])
                run.outputs.append([to_array(leaf) for leaf in leaves])
                run.gradients.append(gradients)
                run.terms.append([to_array(value) for value in scale.values])
                run.names = scale.names
                run.counts.append({term: to_array(c) for term, c in scale.counts.items()})
                run.draws.append(seen.draws)
                run.decisions.append(latent.decisions if latent is not None else [])
                run.batch_norms = seen.batch_norms
            for variable, before in log.written:
                run.written[id(variable)] = (variable, to_array(before), to_array(variable))
        finally:
            log.restore()
            run.moved = [*draws.moved(), *python.moved()]
            run.python = python.restore()
    run.calls, run.summaries = effects.calls, effects.summaries
    return run


def bear(traits: Traits, data: Any, *, restores: bool = True) -> list[str]:
    """Run an eager step on a few samples so that all it creates is there, and undo the rest.

    What is created draws its first values as it would in training, so it is not created while
    draws are replaced by others.

    Args:
        traits: The step.
        data: A few samples.
        restores: Put back what it changes in Python, too.

    Returns:
        The names of what it changed in Python.
    """
    python = traits.python_state()
    with nothing_outside(), logging_writes() as log:

        def body(inputs: Any) -> Any:
            with logging_writes(log), on_trial(), collecting(lambda call: None):
                return traits.call(inputs)

        try:
            with contextlib.suppress(Exception):  # it will be seen again, and told
                traits.run(body, data)
        finally:
            log.restore()
    return python.restore() if restores else python.changed()


def _rows(gradient: Any) -> int | None:
    return int(gradient.values.shape[0]) if isinstance(gradient, tf.IndexedSlices) else None


def _larger_gradients(factor: float) -> Any:
    if factor == 1.0:
        return contextlib.nullcontext()

    def times(g: Any) -> Any:
        if isinstance(g, tf.IndexedSlices):
            return tf.IndexedSlices(g.values * factor, g.indices, g.dense_shape)
        return None if g is None else g * factor

    def larger(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: tf.nest.map_structure(times, original(*args, **kwargs))

    return patches.replaced("tensorflow:GradientTape", "gradient", larger)


def to_array(value: Any) -> Any:
    """What a tensor or variable holds, copied; other things as they are."""
    if value is None:
        return None
    if isinstance(value, (tf.IndexedSlices, tf.RaggedTensor)):
        value = tf.convert_to_tensor(value)
    if isinstance(value, (str, bytes)):
        return value
    value = value.numpy().copy() if hasattr(value, "numpy") else np.array(value)
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value
