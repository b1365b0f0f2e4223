"""A step written by hand as the guard sees it: it runs on a batch, whole or in slices.

It changes nothing but by what it returns, so a step that runs out of memory has done nothing, as
long as what it was given is still there. In slices, what it gives away for its results
(`donate_argnums`) is given away by the last part only, when all slices are through.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from legroom.backends.jax.device import errors
from legroom.backends.jax.device.pool import default_pool
from legroom.backends.jax.functions.call import Call, Layout, is_array, layouts_of
from legroom.backends.jax.functions.comparison import ENOUGH, few_of, ways_of
from legroom.backends.jax.functions.cut import Cut, cut_of, refuse_other_course
from legroom.backends.jax.functions.flat import Flat, Place, flattened
from legroom.backends.jax.functions.parts import Parts, Ways, added, beginning
from legroom.backends.jax.slices.halves import is_half, summed_dtype
from legroom.backends.jax.step.answers import Answers
from legroom.backends.jax.step.needs import SlicedNeeds
from legroom.backends.jax.step.program import Program
from legroom.backends.keras.slices.rules import Refused, Rules
from legroom.backends.steps import Needs
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.traces import LayerCost

__all__ = ["FunctionStep"]


class FunctionStep(Answers):
    """A function compiled by `jax.jit`.

    Args:
        function: The function.
        call: A first call of it.

    Raises:
        Refused: If it has no batch, or does more than to return something.
    """

    def __init__(self, function: Any, call: Call) -> None:
        self._function = function
        self.pool = default_pool()
        self.done: list[Any] = []
        self._traces: dict[int, Any] = {}
        self._flats: dict[int, Flat] = {}
        self._wholes: dict[int, Program] = {}
        self._slices: dict[Any, Program] = {}
        self._cut: Cut | None = None
        self._ways = Ways((), ())
        self._rules: Rules | None = None
        self._smallest: int | None = None
        self._lost = False
        self._layout = self._layout_of(call)

    def _layout_of(self, call: Call) -> Layout:
        """What it is called with. Another number of samples shows whether that is right."""
        traced = call.of(self._function.trace)
        _refuse_effects(call, traced)
        failure: Exception | None = None
        for layout in layouts_of(call, traced):
            samples = layout.samples(call)
            assert samples is not None
            other = _other_than(samples)
            try:
                traced_otherwise = layout.with_samples(call, other).of(self._function.trace)
            except Exception as error:  # of the user's code, which was not made for such a batch
                failure = failure or error
            else:
                self._traces = {samples: traced, other: traced_otherwise}
                return layout
        assert failure is not None
        raise Refused(f"it does not run on another number of samples: {in_a_line(failure)}")

    @property
    def dynamic(self) -> Sequence[int]:
        """The leaves of its calls that are arrays or numbers for JAX."""
        return self._layout.dynamic

    def plain(self) -> Callable[[Call], Any]:
        """The step as it runs without legroom."""
        return lambda call: call.of(self._function)

    def samples(self, call: Call) -> int | None:
        """The number of samples in a batch."""
        return self._layout.samples(call)

    def run(self, call: Call, slice_size: int | None) -> Any:
        """Run a batch in slices, or whole; out of memory means that nothing has happened."""
        try:
            return self._run(call, slice_size)
        except Exception:
            given, _ = self._given(call)
            self._lost = any(isinstance(x, jax.Array) and x.is_deleted() for x in given)
            raise

    def _run(self, call: Call, slice_size: int | None) -> Any:
        samples = self.samples(call)
        if slice_size is None or samples is None or slice_size >= samples:
            outputs = self._run_whole(call, samples)
        else:
            try:
                outputs = self._run_slices(call, samples, slice_size)
            except Refused as refusal:  # this size of slices would do something else
                outputs = self._run_whole(call, samples)
                say_left_out("a batch runs whole, because it can't be sliced", str(refusal))
        self.done.append(outputs)
        return outputs

    # Whole.

    def _run_whole(self, call: Call, samples: int | None) -> Any:
        if samples is None or not self.pool.has_limit():
            return call.of(self._function)
        made = self._whole(call, samples)(*self._given(call))
        return jax.tree.unflatten(self._traced(call, samples).out_tree, made)

    def _whole(self, call: Call, samples: int) -> Program:
        if samples not in self._wholes:
            run = jex.jaxpr_as_fun(self._traced(call, samples).jaxpr)
            order = self._order()

            def whole(given: list[Any], kept: list[Any]) -> Any:
                leaves = [*given, *kept]
                return run(*(leaves[number] for number in order))

            gives = (0,) if self._layout.donated else ()
            self._wholes[samples] = Program(whole, self.pool, gives, missed=True)
        return self._wholes[samples]

    def _given(self, call: Call, leave_out: Sequence[int] = ()) -> tuple[list[Any], list[Any]]:
        """What is given away and what is kept; nothing in the place of what is left out."""
        leaves = [None if k in leave_out else x for k, x in enumerate(self._layout.leaves(call))]
        donated = set(self._layout.donated)
        kept = [x for k, x in enumerate(leaves) if k not in donated]
        return [leaves[k] for k in self._layout.donated], kept

    def _order(self) -> list[int]:
        """Where each leaf is, in what is given away and then what is kept."""
        donated = list(self._layout.donated)
        kept = [k for k in range(len(self._layout.dynamic)) if k not in set(donated)]
        places = {k: place for place, k in enumerate([*donated, *kept])}
        return [places[k] for k in range(len(places))]

    def _traced(self, call: Call, samples: int) -> Any:
        if samples not in self._traces:
            self._traces[samples] = self._layout.with_samples(call, samples).of(
                self._function.trace
            )
        return self._traces[samples]

    # In slices.

    def _run_slices(self, call: Call, samples: int, size: int) -> Any:
        cut, ways = self._cut, self._ways
        assert cut is not None
        spans = _spans(samples, size, self._least(call))
        finish = self._finish(call, samples)  # looked at before anything runs
        counts: list[Any] = []
        if cut.counts:
            counts = self._beginning(ways.counts, cut.counts, call, samples)
            for start, stop in spans:
                program = self._slice(call, stop - start, "count")
                counts = program(counts, self._part(call, start, stop), *_at(start, stop, samples))
        sums = self._beginning(ways.sums, cut.sums, call, samples)
        pieces = []
        for start, stop in spans:
            program = self._slice(call, stop - start, "give")
            leaves = self._part(call, start, stop)
            sums, joined = program(sums, leaves, counts, *_at(start, stop, samples))
            pieces.append(joined)
        # All that may run out comes before the weights are given away.
        joined = iter(self._joined(pieces))
        given, kept = self._given(call, self._layout.batch)
        made = finish(given, kept, counts, sums)
        rows = zip(made, cut.joined, strict=True)
        outputs = [value if axis is None else next(joined) for value, axis in rows]
        return jax.tree.unflatten(self._traced(call, samples).out_tree, outputs)

    def _joined(self, pieces: Sequence[Sequence[Any]]) -> list[Any]:
        """What slices return for each sample, put together."""
        assert self._cut is not None
        axes = [axis for axis in self._cut.joined if axis is not None]
        parts = zip(*pieces, strict=True)
        made = [jnp.concatenate(x, axis=axis) for x, axis in zip(parts, axes, strict=True)]
        return list(jax.block_until_ready(made)) if self.pool.has_limit() else made

    def _part(self, call: Call, start: int, stop: int) -> list[Any]:
        """What a slice is called with."""
        batch = set(self._layout.batch)
        leaves = self._layout.leaves(call)
        return [x[start:stop] if k in batch else x for k, x in enumerate(leaves)]

    def _slice(self, call: Call, samples: int, what: str) -> Program:
        if (samples, what) not in self._slices:
            parts = self._parts(call, samples)
            ways = self._ways.counts if what == "count" else self._ways.sums

            def count(totals: list[Any], leaves: list[Any], start: Any, share: Any) -> Any:
                return _all_added(ways, totals, parts.count(leaves, start), share)

            def give(
                totals: list[Any], leaves: list[Any], counts: Any, start: Any, share: Any
            ) -> Any:
                sums, joined = parts.give(leaves, counts, start)
                return _all_added(ways, totals, sums, share), joined

            self._slices[samples, what] = Program(
                count if what == "count" else give, self.pool, (0,)
            )
        return self._slices[samples, what]

    def _finish(self, call: Call, samples: int) -> Program:
        if (samples, "finish") not in self._slices:
            parts, order = self._parts(call, samples), self._order()

            def finish(given: list[Any], kept: list[Any], counts: Any, sums: Any) -> Any:
                leaves = [*given, *kept]
                return parts.finish([leaves[number] for number in order], counts, sums)

            # What slices give is as large as the weights, and new ones can be written over it.
            gives = (0,) if self._layout.donated else (3,)
            self._slices[samples, "finish"] = Program(finish, self.pool, gives, missed=True)
        return self._slices[samples, "finish"]

    def _parts(self, call: Call, samples: int) -> Parts:
        assert self._cut is not None
        return Parts(self._flat(call, samples), self._cut, samples)

    def _flat(self, call: Call, samples: int) -> Flat:
        if samples not in self._flats:
            flat = flattened(self._traced(call, samples).jaxpr)
            refuse_other_course(flat, next(iter(self._flats.values()), flat))
            self._flats[samples] = flat
        return self._flats[samples]

    def _least(self, call: Call) -> int:
        """The smallest slice: what broadcasts does something else with a single sample."""
        if self._smallest is None:
            try:
                self._flat(call, 1)
                self._smallest = 1
            except Refused:
                self._smallest = 2
        return self._smallest

    def _beginning(self, ways: Sequence[str], places: Any, call: Call, samples: int) -> list[Any]:
        flat = self._flat(call, samples)
        pairs = zip(ways, places, strict=True)
        return [beginning(way, flat.at(place).aval) for way, place in pairs]

    # What the guard asks.

    def rules(self, call: Call) -> Rules:
        """Whether it may be sliced; found out on the first batch that shows it."""
        if self._rules is None:
            try:
                self._rules = self._find_rules(call)
            except Refused as refusal:
                rules = Rules(refusal=str(refusal))
                if (self.samples(call) or 0) < ENOUGH:
                    return rules  # of this batch: a larger one may be cut
                self._rules = rules
        return self._rules

    def _find_rules(self, call: Call) -> Rules:
        samples = self.samples(call)
        if samples is None:
            raise Refused("its arguments do not share a first axis of samples")
        sizes = few_of(samples)
        few = sum(sizes)
        weights = self._layout.weights
        cut = cut_of(self._flat(call, samples), self._flat(call, _other_than(samples)), weights)
        self._cut = cut
        try:
            self._ways = ways_of(
                cut, functools.partial(self._parts, call), functools.partial(self._part, call),
                weights, sizes, self.pool, halves=_computes_in_halves(self._flat(call, few)),
            )  # fmt: skip
        except Exception as error:
            if not errors.is_oom(error):
                raise
            raise Refused(f"{few} samples were too much for a comparison") from None
        finally:
            gc.collect()
            self.pool.forget_cached()
        return Rules(coupled=cut.coupled)

    def needs(self, call: Call, free: int | None) -> Needs | None:
        """What it should need on batches like this, by XLA."""
        samples = self.samples(call)
        if samples is None:
            return None
        whole = self._whole(call, samples).needs(*self._given(call))
        if whole is None:
            return None
        rules = None if free is None or whole <= free else self.rules(call)
        if rules is None or rules.refusal is not None:
            return SlicedNeeds(samples, whole)
        return SlicedNeeds(samples, whole, lambda size: self._slice_needs(call, samples, size))

    def _slice_needs(self, call: Call, samples: int, size: int) -> int | None:
        assert self._cut is not None
        try:
            spans = _spans(samples, size, self._least(call))
            stop = max(stop - start for start, stop in spans)
            program = self._slice(call, stop, "give")
        except Refused:  # slices of this size would do something else
            return None
        counts = self._totals(self._cut.counts, call, samples)
        sums = self._totals(self._cut.sums, call, samples)
        taken = program.needs(sums, self._part(call, 0, stop), counts, *_at(0, stop, samples))
        held = sum(x.size * x.dtype.itemsize for x in sums)
        return None if taken is None else taken + held

    def _totals(self, places: Sequence[Place], call: Call, samples: int) -> list[Any]:
        """What slices are added up to, without its memory."""
        avals = [self._flat(call, samples).at(place).aval for place in places]
        return [jax.ShapeDtypeStruct(x.shape, summed_dtype(x.dtype)) for x in avals]

    def layer_costs(self, call: Call) -> tuple[Sequence[LayerCost], bool]:
        """What layers keep for their gradients: a function shows no layers."""
        return (), False

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """There are no layers."""

    @property
    def broken_by_oom(self) -> bool:
        """Whether what the step was given is gone: then it can't be run again."""
        return self._lost


def _other_than(samples: int) -> int:
    """Another number of samples to trace a step for: one that it is compared with, if it can be."""
    return ENOUGH if samples > ENOUGH else samples + 1


def _refuse_effects(call: Call, traced: Any) -> None:
    if traced.jaxpr.effects:
        raise Refused("it prints or calls Python while it runs (jax.debug, callbacks)")
    if len(traced.jaxpr.jaxpr.invars) != len(jax.tree.leaves(traced.args_info)):
        raise Refused("this JAX gives it more than its arguments")
    if any(isinstance(x, jax.Array) and len(x.devices()) > 1 for x in call.leaves):
        raise Refused("its arrays lie on several devices")
    if not any(is_array(x) for x in call.leaves):
        raise Refused("none of its arguments is an array")


def _computes_in_halves(flat: Flat) -> bool:
    made = (x.aval for operation in flat.operations for x in operation.outvars)
    return any(is_half(getattr(aval, "dtype", "")) for aval in made)


def _all_added(ways: Sequence[str], totals: Any, values: Any, share: Any) -> list[Any]:
    rows = zip(ways, totals, values, strict=True)
    return [added(way, total, value, share) for way, total, value in rows]


def _at(start: int, stop: int, samples: int) -> tuple[Any, Any]:
    """Where a slice begins, and its share of the batch."""
    return jnp.uint32(start), jnp.float32((stop - start) / samples)


def _spans(samples: int, size: int, least: int) -> list[tuple[int, int]]:
    """The samples of each slice: as few slices as the size allows, and none below the least."""
    count = min(-(-samples // max(size, least)), samples // least)
    bounds = [samples * number // count for number in range(count + 1)]
    return list(itertools.pairwise(bounds))
