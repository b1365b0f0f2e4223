"""A step as the guard sees it: something that runs on a batch, whole or in slices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import tensorflow as tf
from keras import tree

from legroom.backends import patches
from legroom.backends.base import Device
from legroom.backends.keras.recompute_blocks import recompute_blocks
from legroom.backends.keras.slices.rules import Rules
from legroom.backends.steps import Needs
from legroom.backends.tensorflow.commit.collect import inner_variable
from legroom.backends.tensorflow.device import oom, pool
from legroom.backends.tensorflow.effects.outside import op_types, reaches_outside
from legroom.backends.tensorflow.effects.side_effects import side_effects
from legroom.backends.tensorflow.forecast.needs import TracedNeeds, settled_needs, usable_share
from legroom.backends.tensorflow.forecast.ordering import orderer
from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
from legroom.backends.tensorflow.graph.layer_costs import layer_costs
from legroom.backends.tensorflow.graph.stepgraph import StepGraph, trace_step
from legroom.backends.tensorflow.graph.taped_step import eager_bytes
from legroom.backends.tensorflow.graph.trace import GraphTrace
from legroom.backends.tensorflow.graph.walk import walk_slices
from legroom.backends.tensorflow.slices.sameness import find_rules
from legroom.backends.tensorflow.slices.sliced import SlicedStep
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.step_loop import StepLoop
from legroom.backends.tensorflow.step.traits import Traits
from legroom.backends.tensorflow.step.whole import WholeStep
from legroom.core.errors import LegroomError, UnlikeBeforeError
from legroom.core.graphs import Orderer, StepWalk
from legroom.core.traces import LayerCost
from legroom.messages.reading.ops import layer_of_op, match_layer

__all__ = ["Step"]

# How far what a step takes op by op may be above what is reckoned; it was 0.6 to 1.15 of that.
_DOUBT = 1.15


class Step:
    """A training, test or predict step, or a hand-written one.

    Args:
        traits: How it is to be traced.
        model: The Keras model, where there is one.
        concatenates: Whether its results are one for each sample, as a predict step's are; then
            nothing has to be found out before it is sliced.
        returns: How its results are put together, where the user has said so.
    """

    def __init__(
        self,
        traits: Traits,
        *,
        model: Any = None,
        concatenates: bool = False,
        returns: Any = None,
    ) -> None:
        self._traits = traits
        self._model = model
        self._whole = WholeStep(traits)
        self._lean = False
        self._returns = returns
        self._rules: Rules | None = None
        if concatenates:
            self._rules = Rules(applies=0, gradients=[], concatenates=True)
        self._sliced: SlicedStep | None = None
        self._slices: StepGraph | None = None
        self._traced: TracedNeeds | None = None
        self._as_it_came = True
        self.done: list[Any] = []  # the results of the last run, for `Careful`

    def sibling(self) -> Step:
        """The same step for another search, with what was traced and found out of it so far."""
        other = Step(self._traits, model=self._model, returns=self._returns)
        other._rules = self._rules
        if self._as_it_came:
            other._whole = self._whole
        return other

    def suspend(self) -> None:
        """Hold no sums of gradients while others run; what was traced stays."""
        if self._sliced is not None:
            self._sliced.empty()

    def drop_slices(self) -> None:
        """Forget what slices were traced, which holds constants as large as activations."""
        if self._sliced is not None:
            self._sliced.release()
            self._sliced = None

    @property
    def pool(self) -> Device:
        """The device's memory: its limit, what is in use, the peak."""
        return pool

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch; None where that can't be told."""
        return batch.batch_size(data)

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run the step on a batch. If it raises out of memory, nothing has happened.

        Args:
            data: The batch.
            slice_size: The size of its slices; None for the whole batch at once.
        """
        self.done[:] = [self._run(data, slice_size)]
        return self.done[0]

    def _run(self, data: Any, slice_size: int | None) -> Any:
        if slice_size is None:
            if self._sliced is not None and (self.samples(data) or 0) >= self._sliced.largest:
                self.drop_slices()
            return self._whole(data)
        if self._sliced is None:
            self._sliced = SlicedStep(self._traits, self.rules(data))
        try:
            return self._sliced(batch.as_tensors(data), slice_size)
        except UnlikeBeforeError as error:
            # It is undone, and whatever was found out of it does not hold.
            self._rules = Rules(refusal=str(error).strip().splitlines()[-1].strip())
        self.drop_slices()
        return self._run(data, None)

    def loop(self) -> StepLoop | None:
        """Whole steps in a loop over batches; None where they can't be, or memory is short."""
        short = self._sliced is not None or not self._as_it_came
        return None if short else self._whole.loop()

    def plain(self) -> Callable[[Any], Any]:
        """The step as Keras would run it, with nothing of legroom in it."""
        traits = self._traits
        if traits.eager:
            return functools.partial(traits.run, traits.call)
        return cast("Callable[[Any], Any]", traits.function(traits.call, traits.spec))

    def rules(self, data: Any) -> Rules:
        """How the step's slices are put together; found out on the first call."""
        if self._rules is None and (lacking := patches.missing("slices")) is not None:
            self._rules = Rules(refusal=lacking)
        if self._rules is None:
            graphs = self._whole.prepare(data)  # what it creates must exist before it is compared
            ops = op_types(graphs)
            refusal = reaches_outside(ops)
            if self._whole.branches:
                refusal = "it applies its optimizer in a loop or a branch of its graph"
            if refusal is not None:
                self._rules = Rules(refusal=refusal)
                return self._rules
            too_much = functools.partial(self._too_much, data)
            variables = [variable for graph in graphs for variable in graph.variables]
            if not graphs and self._model is not None:
                variables = [inner_variable(variable) for variable in self._model.variables]
            tensors = batch.as_tensors(data)
            self._rules = find_rules(self._traits, tensors, self._model, too_much, variables)
            self._slices = None  # a graph that nobody asks for again
            effects = side_effects(ops)
            self._rules = dataclasses.replace(
                self._rules,
                calls=sorted({*self._rules.calls, *effects.calls}),
                summaries=self._rules.summaries or effects.summaries,
            )
            if self._returns is not None and self._rules.refusal is None:
                outputs = _as_said(self._returns, len(self._rules.outputs))
                self._rules = dataclasses.replace(self._rules, outputs=outputs)
        return self._rules

    def _too_much(self, data: Any, samples: int) -> bool:
        """Whether so many samples are known to be too much for a step that is run op by op."""
        limit = pool.limit_bytes()
        if limit is None:
            return False
        if self._slices is None:
            self._trace_slices(data)
        if self._slices is None:
            return False
        free = limit - (pool.in_use_bytes() or 0)
        return _DOUBT * eager_bytes(self._slices, samples) > free

    def needs(self, data: Any, free: int | None) -> Needs | None:
        """What it should need on batches like this; None for an eager step.

        Args:
            data: The batch.
            free: The bytes that are free, where it is to be looked at closely if that may matter.
        """
        samples, traces = self.samples(data), self.traces(data)
        if samples is None or not traces:
            return None
        self._traced = quick = TracedNeeds(traces, samples, compiled=self.compiled)
        if free is None:
            return quick
        return settled_needs(quick, samples, free, functools.partial(self.walk, data))

    def usable(self, *, planned: bool) -> float:
        """The share of what is free that a size above those that were seen may need."""
        limited = pool.limit_bytes() is not None
        return usable_share(compiled=self.compiled, limited=limited, planned=planned)

    def tensors(self, samples: int) -> list[tuple[str, int]]:
        """The largest tensors of a slice of this size, as `needs` saw it: layers and bytes."""
        if self._traced is None:
            return []
        return [(self.layer(op), nbytes) for op, nbytes in self._traced.peak(samples).tensors]

    def traces(self, data: Any) -> list[GraphTrace]:
        """The functions that a step on this batch runs, traced; none for an eager step."""
        samples = self.samples(data)
        if samples is None:
            return []
        return [GraphTrace(graph, samples, data) for graph in self._whole.prepare(data)]

    def walk(self, data: Any) -> StepWalk | None:
        """A slice of a batch like this, as TensorFlow's executor runs it.

        None for a step that is not a Keras model's own, or is not run by that executor.
        """
        self._trace_slices(data)
        return None if self._slices is None else walk_slices(self._slices)

    def _trace_slices(self, data: Any) -> None:
        traits, samples = self._traits, self.samples(data)
        if self._model is None or samples is None:
            return
        if not traits.trains or traits.eager or traits.jit_compile:
            return
        # Where it can't be traced, what its slices need is seen when they run.
        with contextlib.suppress(LegroomError):
            self._slices = trace_step(self._model, data=data, samples=TRACED_SIZE, slice_of=samples)

    @property
    def compiled(self) -> bool:
        """Whether XLA makes one program of the step's ops."""
        return bool(self._traits.jit_compile)

    @property
    def oom_seconds(self) -> float:
        """How long TensorFlow waits for memory before it gives up."""
        return oom.SECONDS

    @property
    def broken_by_oom(self) -> bool:
        """Whether running out breaks the process.

        XLA on a CPU gives memory back twice then: later steps were seen to compute nonsense, and
        to abort.
        """
        return self.compiled and pool.device_name() == "CPU:0"

    def layer_costs(self, data: Any) -> tuple[list[LayerCost], bool]:
        """What the model's layers keep for their gradients; none where there is no model."""
        if self._model is None or not self._traits.trains:
            return [], False
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return layer_costs(self._model, batch.as_tensors(inputs))

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """From now on, compute these blocks of layers again instead of keeping them."""
        recompute_blocks(self._model, blocks)
        self._start_anew()

    def put_in_order(self, samples: int) -> None:
        """From now on, have the ops of whole batches wait for each other."""
        self._start_anew(orderer(samples))

    @property
    def lean_saves(self) -> int:
        """The bytes that `go_lean` would save on whole batches, about; 0 where it can't."""
        if self._lean or not self._traits.trains or not pool.has_limit():
            return 0  # without a limit of its own, the device's memory is the host's
        return self._whole.spare_bytes

    @property
    def unborn_bytes(self) -> int:
        """State that the first update will create: slots that are zero take no memory yet."""
        in_use = pool.in_use_bytes()
        return 0 if in_use is None else max(0, self._whole.state_bytes - in_use)

    def go_lean(self, lean: bool = True) -> None:
        """From now on, keep what a failed step needs in the host's memory, or no longer.

        Whole batches then take the device memory that Keras's own step takes.
        """
        self._lean = lean
        self._start_anew()

    def _start_anew(self, order: Orderer | None = None) -> None:
        self._whole = WholeStep(self._traits, order, lean=self._lean)
        self._as_it_came = False
        self.drop_slices()

    @property
    def needs_data(self) -> bool:
        """Whether a batch is needed to trace the step: its source does not declare its types."""
        return self._traits.eager or self._traits.spec is None

    def prepare(self, data: Any) -> None:
        """Trace the step without running it, so that all it uses is there."""
        self._whole.prepare(data)

    def graphs(self) -> list[Any]:
        """The graph of the step as it was first traced; none for an eager step."""
        return self._whole.graphs()

    @staticmethod
    def is_oom(error: BaseException) -> bool:
        """Whether an exception means that device memory ran out."""
        return oom.is_oom(error)

    @staticmethod
    def is_about_data(error: BaseException) -> bool:
        """Whether it is what an op raises, mostly about the numbers that it was given."""
        return isinstance(error, tf.errors.OpError)

    def describe(self, error: BaseException) -> tuple[str | None, int | None]:
        """The layer or op that ran out, and the bytes it asked for."""
        details = oom.describe(error)
        place = details.place if details.op is None else self.layer(details.op)
        if self._model is not None and place and place == details.op and "/" not in place:
            place = None  # an op in no layer's scope: its name says nothing
        return place, details.needed_bytes

    def layer(self, op: str) -> str:
        """The layer that an op belongs to; the op itself where none is found."""
        names = [] if self._model is None else [x.name for x in self._model._flatten_layers()]
        return match_layer(op, names) or layer_of_op(op) or op

    def recover(self) -> None:
        """Free what a failed step left behind, once its exception is dropped."""
        if self._sliced is not None:
            self._sliced.forget_functions()
        gc.collect()


def _as_said(returns: Any, count: int) -> list[str]:
    """The user's own word on how results are put together, one for each of them."""
    said = tree.flatten(returns)
    unknown = [word for word in said if word not in ("mean", "sum", "concat", "last")]
    if unknown or len(said) not in (1, count):
        raise LegroomError(
            'returns= takes "mean", "sum", "concat" or "last", one for all results or one for '
            f"each of the {count} that the step returns. Received: returns={returns!r}"
        )
    return list(said) * (count if len(said) == 1 else 1)
