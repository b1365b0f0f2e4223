"""A step on slices of its batch that gives the update of the whole batch.

The gradients of the slices are added up in accumulators, one copy of the gradients, and applied
once. A step that applies several optimizers in turn takes one pass over the slices for each of
them: before its `apply`, a variable has the old value in every pass, after it the new one, and
random state is replayed, so each slice sees what the whole batch would have seen.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from keras import StatelessScope, tree

from legroom.backends.keras.slices.held_metrics import combine, holding, update_held
from legroom.backends.keras.slices.loss_scale import Scale, scaling
from legroom.backends.keras.slices.rules import Rules
from legroom.backends.tensorflow.commit.collect import Applied, StepCut, collecting
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.device.survivable import survivable
from legroom.backends.tensorflow.effects.side_effects import on_trial, summaries_once
from legroom.backends.tensorflow.effects.variables import (
    Snapshot,
    written_handles,
)
from legroom.backends.tensorflow.effects.write_log import (
    current_log,
    logging_writes,
    unlogged,
)
from legroom.backends.tensorflow.slices.after_apply import run_tail, without_tail
from legroom.backends.tensorflow.slices.draws import cutting
from legroom.backends.tensorflow.slices.updates import Update
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.traits import Traits, own_function
from legroom.core.aside import say_left_out
from legroom.core.errors import UnlikeBeforeError

__all__ = ["SlicedStep"]

# Batches of so many sizes are told apart; functions of those before them are dropped.
_MOST_CUTS = 8


class _Place(NamedTuple):
    """Where a slice is in its batch.

    Attributes:
        share: Its part of the samples.
        start: How many samples came before it.
        seeds: What the step's generators of seeds held when the step began.
        last: Whether it is the last one.
    """

    share: Any
    start: Any
    seeds: list[Any]
    last: Any


class SlicedStep:
    """Runs a step slice by slice.

    Args:
        traits: How the step is to be traced.
        rules: How its slices are put together.
    """

    def __init__(self, traits: Traits, rules: Rules) -> None:
        self._traits = traits
        self._rules = rules
        rows = [*rules.rows, *([[]] * (rules.applies - len(rules.rows)))]
        self._updates = [Update(traits, rows[i]) for i in range(rules.applies)]
        self._handles: dict[int, Any] = {}
        # By the number of the pass, the slice's size, and what XLA draws by.
        self._functions: dict[tuple[int, int, str | None], Any] = {}
        self._counting: Any = None
        self._slices = 1
        self._seeds: list[Any] = []
        # The sizes of slices that batches of a size were last cut into, the latest batch last.
        self._cuts: dict[int, set[int]] = {}
        self._held_order: list[int] = []
        self._held_results: dict[int, int] = {}

    def __call__(self, data: Any, slice_size: int) -> Any:
        """Run the step. If it raises out of memory, nothing has happened."""
        samples = batch.batch_size(data)
        assert samples is not None
        parts = batch.Slices(data, samples, slice_size)
        sizes = parts.sizes
        self._slices = len(sizes)
        before = self._cuts.pop(samples, None)
        self._cuts[samples] = set(sizes)
        if before != self._cuts[samples]:
            self._keep_only_used()
        if self._traits.eager:
            return self._run_eagerly(parts, sizes)
        self._trace(parts, sizes)
        metrics = [v._value.handle for m in self._rules.metrics for v in m.variables]
        return self._undone_by(Snapshot([*self._handles.values(), *metrics]), parts, sizes)

    def _run_eagerly(self, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
        python = self._traits.python_state()
        try:
            with logging_writes() as log:
                return self._undone_by(log, parts, sizes)
        except Exception as error:
            if oom.is_oom(error):
                python.restore()  # generators draw the same noise when it is tried again
            raise

    @property
    def largest(self) -> int:
        """The largest batch that is run in slices."""
        return max(self._cuts, default=0)

    def release(self) -> None:
        """Free the accumulators: the step runs whole again."""
        for update in self._updates:
            update.release()
        self.forget_functions()

    def empty(self) -> None:
        """Free the accumulators' memory until the next step, but keep what was traced."""
        for update in self._updates:
            update.empty()

    def forget_functions(self) -> None:
        """Memory is short: what batches of other sizes need is traced again when they come."""
        self._functions.clear()
        self._cuts.clear()

    def _keep_only_used(self) -> None:
        """Functions keep constants as large as activations: those of no batch's slices go.

        The last batch of an epoch is a shorter one, so those of several batches are kept.
        """
        while len(self._cuts) > _MOST_CUTS:
            self._cuts.pop(next(iter(self._cuts)))
        used = set().union(*self._cuts.values())
        self._functions = {key: f for key, f in self._functions.items() if key[1] in used}

    def _undone_by(self, saved: Any, parts: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Run all passes; whatever ends them early, put back what `saved` holds."""
        try:
            outputs, interrupt = self._run(saved, parts, sizes)
        except BaseException:
            for update in reversed(self._updates):
                update.take_back()
            saved.restore()
            raise
        if interrupt is not None:
            raise interrupt  # which came when the step was as good as through, and now it is
        return outputs

    def _run(
        self, saved: Any, parts: Sequence[Any], sizes: Sequence[int]
    ) -> tuple[Any, BaseException | None]:
        """The step's results, and what wanted to end it when it could only be completed."""
        interrupt: BaseException | None = None
        totals = self._totals(parts)
        self._seeds = [tf.identity(seed) for seed in self._rules.seeds]
        results = self._pass(0, parts, sizes, totals)
        for number in range(1, len(self._updates)):
            with unlogged():
                self._updates[number - 1].commit_for_now()
                self._updates[number - 1].keep_new()
            saved.restore()  # each pass begins with the step's own random state and metrics
            results = self._pass(number, parts, sizes, totals)
        outputs = self._outputs(results, sizes)
        if self._rules.late:
            with unlogged():
                self._updates[-1].commit_for_now()
            self._run_tail(parts[-1], sizes[-1])
        elif self._updates:
            with unlogged():  # a commit looks after itself, and keeping its old values costs memory
                interrupt = self._updates[-1].commit(None)
        for update in self._updates:
            update.settle()
        return outputs, interrupt

    def _pass(
        self, number: int, parts: Sequence[Any], sizes: Sequence[int], totals: dict[int, Any]
    ) -> list[Any]:
        """Run every slice up to the step's apply of this number, adding up its gradients."""
        if self._updates:
            self._updates[number].clear()
        return [self._run_slice(number, part, sizes, i, totals) for i, part in enumerate(parts)]

    def _run_slice(
        self, number: int, part: Any, sizes: Sequence[int], i: int, totals: dict[int, Any]
    ) -> Any:
        size = sizes[i]
        for earlier in self._updates[:number]:
            earlier.show_old()
        place = _Place(
            tf.constant(size / sum(sizes), tf.float32),
            tf.constant(sum(sizes[:i]), tf.int64),
            self._seeds,
            tf.constant(i == len(sizes) - 1),
        )
        if self._traits.eager:
            log = current_log()

            def body(part: Any, place: _Place, totals: dict[int, Any]) -> Any:
                with logging_writes(log):
                    return self._body(number, None, part, place, totals)

            result = self._traits.strategy.run(body, args=(part, place, totals))
        else:
            with survivable():
                result = self._functions[number, size, self._xla(sizes)](part, place, totals)
        outputs, sparse, held = result
        if self._updates:
            self._updates[number].add_sparse(sparse)
        return outputs, held

    def _run_tail(self, part: Any, size: int) -> None:
        """What the step does with the new weights, once: of all it writes, only that."""
        if self._traits.eager:
            log = current_log()

            def body(part: Any) -> None:
                with logging_writes(log):
                    self._tail(part)

            self._traits.run(body, part)
            return
        with survivable():
            self._functions[len(self._updates), size, None](part)

    def _tail(self, data: Any) -> None:
        run_tail(self._traits.call, data, len(self._updates), self._rules.late)

    def _trace(self, parts: Sequence[Any], sizes: Sequence[int]) -> None:
        """Trace what is not traced yet, before anything runs: tracing creates state."""
        for number in range(max(1, len(self._updates))):
            for i, size in enumerate(sizes):
                key = number, size, self._xla(sizes)
                if key in self._functions:
                    continue
                part = parts[i]
                function = self._function(number, self._xla(sizes))
                totals = {term: tf.constant(1.0) for term in self._totals([part])}
                seeds = [tf.identity(seed) for seed in self._rules.seeds]
                place = _Place(tf.constant(1.0), tf.constant(0, tf.int64), seeds, tf.constant(True))
                graph = function.get_concrete_function(part, place, totals).graph
                self._note_writes(graph)
                self._functions[key] = function
        tail = len(self._updates), sizes[-1], None
        if self._rules.late and tail not in self._functions:
            function = self._traits.function(self._tail)
            self._note_writes(function.get_concrete_function(parts[-1]).graph)
            self._functions[tail] = function

    def _note_writes(self, graph: Any) -> None:
        own = {id(handle) for update in self._updates for handle in update.handles}
        for handle in written_handles(graph):
            if id(handle) not in own:
                self._handles[id(handle)] = handle

    def _xla(self, sizes: Sequence[int]) -> str | None:
        """What XLA draws by; see `draws.cutting`."""
        if not self._traits.jit_compile:
            return None
        return "odd" if sum(sizes) % 2 else "even"

    def _function(self, number: int, xla: str | None) -> Any:
        body = functools.partial(self._body, number, xla)

        @tf.autograph.experimental.do_not_convert
        def run(data: Any, place: _Place, totals: dict[int, Any]) -> Any:
            return self._traits.strategy.run(body, args=(data, place, totals))

        return own_function(run, self._traits.jit_compile)

    def _body(
        self, number: int, xla: str | None, data: Any, place: _Place, totals: dict[int, Any]
    ) -> Any:
        """One slice: the step, with its gradients added to the accumulators."""
        share = place.share
        for seed, value in zip(self._rules.seeds, place.seeds, strict=True):
            seed.assign(value)
        applies = 0
        sparse: list[Any] = []
        last = number >= len(self._updates) - 1

        def catch(call: Applied) -> None:
            nonlocal applies, sparse
            if applies >= len(self._updates):
                raise UnlikeBeforeError("the number of times it applies its optimizers varies")
            if applies == number:
                mean = self._rules.gradients[number] != "sum"
                weight = share if mean and id(call.optimizer) not in scale.weighted else None
                sparse = self._updates[number].accumulate(call, weight, self._slices)
                if not last:
                    raise StepCut
            elif applies < number:
                self._updates[applies].show_new()
            applies += 1

        outputs: Any = None
        scale = Scale(share, self._rules.terms, totals)
        rules = self._rules
        size = batch.batch_size(data)
        assert size is not None
        with (
            summaries_once(place.last) if last else on_trial(),
            holding(rules.metrics, rules.unweighted) as held,
            scaling(scale),
            collecting(catch),
            without_tail(lambda: applies == len(self._updates), rules.late),
            cutting(rules.draws, size, place.start, xla=xla) as unknown,
            contextlib.suppress(StepCut),
        ):
            outputs = self._traits.call(data)
        if unknown and rules.draws:
            say_left_out(
                "A part of a training's random numbers is not drawn alike in slices",
                f"{unknown[0] or 'the step'} drew nothing like it when the step was looked at",
            )
        if last:
            if applies != len(self._updates):
                raise UnlikeBeforeError("the number of times it applies its optimizers varies")
            self._held_order = held.order
            self._held_results = {
                i: held.results[id(leaf)][0]
                for i, leaf in enumerate(tree.flatten(outputs))
                if id(leaf) in held.results
            }
        return outputs, sparse, held.calls if last else []

    def _totals(self, parts: Sequence[Any]) -> dict[int, Any]:
        """The whole batch's denominators, for loss terms that count something else than samples."""
        if not self._rules.counts:
            return {}
        totals: dict[int, Any] = {}
        for part in parts:
            for term, count in self._count(part).items():
                count = tf.cast(count, tf.float32)
                totals[term] = totals[term] + count if term in totals else count
        return totals

    def _count(self, part: Any) -> dict[int, Any]:
        """The denominators of one slice; in a graph only what they depend on is computed."""

        def catch(call: Applied) -> None:
            raise StepCut

        def body(data: Any) -> dict[int, Any]:
            scale = Scale()
            cut = contextlib.suppress(StepCut)
            with cut, on_trial(), StatelessScope(), scaling(scale), collecting(catch):
                self._traits.call(data)
            return scale.counts

        if self._traits.eager:
            return self._traits.run(body, part)
        if self._counting is None:
            self._counting = self._traits.function(body)
        return self._counting(part)

    def _outputs(self, results: Sequence[Any], sizes: Sequence[int]) -> Any:
        """What the whole batch's step would have returned."""
        held = [held for _, held in results]
        rules = self._rules
        update_held(rules.metrics, self._held_order, held, sizes, rules.held, batch.concatenate)
        leaves = [tree.flatten(outputs) for outputs, _ in results]
        ways = rules.outputs or ["last"] * len(leaves[-1])
        if rules.concatenates:
            ways = ["concat" if batch.leading(x) == sizes[-1] else "last" for x in leaves[-1]]
        shares = [size / sum(sizes) for size in sizes]
        merged = [
            rules.metrics[self._held_results[i]].result()
            if i in self._held_results
            else combine([leaf[i] for leaf in leaves], way, shares, batch.concatenate)
            for i, way in enumerate(ways)
        ]
        return tree.pack_sequence_as(results[-1][0], merged)
