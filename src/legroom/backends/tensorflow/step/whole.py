"""A step on its whole batch, that happens wholly or not at all.

Ways to the same result, the first that can be:

*compiled*: one XLA program allocates before it computes and writes after it has, so it is whole by
itself and runs unchanged.

*held back*: nothing is written before everything is computed; see `held_back`.

*kept*: the step as it is, with the old values of all it writes kept until it is through. For steps
that apply several optimizers in turn, and for optimizers that do more than update each variable.

*lean*: the same with the old values in the host's memory. It takes the device memory that Keras's
own step takes, and the time to copy: for a model whose gradients do not fit beside its state.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.device.survivable import survivable
from legroom.backends.tensorflow.effects.variables import (
    HostSnapshot,
    Snapshot,
    handle_bytes,
    undone_by,
    written_handles,
)
from legroom.backends.tensorflow.graph.op_order import impose_order
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.eager import EagerStep
from legroom.backends.tensorflow.step.held_back import Held, HoldingBack
from legroom.backends.tensorflow.step.step_loop import StepLoop
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.graphs import Orderer

__all__ = ["GraphStep", "TracedStep", "WholeStep"]


class WholeStep:
    """A step on whole batches, in a graph or eagerly.

    Args:
        traits: How it is to be traced.
        order: Says which ops wait for which; None leaves them as they come. An eager step's come
            in the order of its code.
        lean: Keep what a failed step needs in the host's memory, and nothing on the device.
    """

    def __init__(self, traits: Traits, order: Orderer | None = None, *, lean: bool = False) -> None:
        self._step: Any = (
            EagerStep(traits, lean) if traits.eager else GraphStep(traits, order, lean)
        )

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises anything at all, nothing has happened."""
        return self._step(data)

    def prepare(self, data: Any) -> list[Any]:
        """Trace the step for this batch without running it.

        Returns:
            The graphs that will run, one after the other; none for an eager step.
        """
        return self._step.prepare(data)

    def loop(self) -> StepLoop | None:
        """The step in a loop over batches; None where it can't be run so."""
        return self._step.loop() if isinstance(self._step, GraphStep) else None

    @property
    def branches(self) -> bool:
        """Whether the step applies an optimizer in a branch or a loop of its graph."""
        return bool(self._step.branches)

    def graphs(self) -> list[Any]:
        """The graph that was traced first, which is the step as it is for any batch."""
        return self._step.graphs()

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most: a lean step takes none."""
        return self._step.spare_bytes

    @property
    def state_bytes(self) -> int:
        """The variables that it updates and their slots, where they are known."""
        committer = self._step.committer
        return 0 if committer is None else committer.state_bytes


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step as it was traced for one kind of batch.

    Attributes:
        function: Runs it.
        graphs: What runs, one graph after the other.
        kept: The variables whose old values are kept while it runs.
        held: How its other writes are held back, if they are.
        traced: The function for this kind of batch alone.
    """

    function: Any
    graphs: list[Any]
    kept: list[Any]
    held: Held | None = None
    traced: Any = None

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most."""
        if self.held is None:
            return sum(handle_bytes(handle) for handle in self.kept)
        committer = self.held.committer
        return committer.held_bytes + (0 if self.held.splits else committer.state_bytes)

    def snapshot(self) -> Snapshot | None:
        """What is put back if it fails; None where nothing is written before it can't."""
        if not self.kept:
            return None
        return Snapshot([*self.kept, *self._counters])

    def is_through(self, saved: Snapshot) -> bool:
        """Whether its update is made, whatever was raised: an interrupt comes when it likes."""
        return saved.moved(self._counters)

    def run(self, data: Any) -> Any:
        """Run it on a batch."""
        with survivable():
            result = self.function(data)
        if self.held is None or not self.held.splits:
            return result
        outputs, gradients = result[0], list(result[1])
        del result  # a gradient is free as soon as it is applied
        self.held.committer.update(gradients)
        return outputs

    def loop(self, spec: Any) -> StepLoop | None:
        """It in a loop over batches; None where it can't be run so."""
        if self.held is not None and self.held.splits:
            return None
        if not StepLoop.can_run(self.traced, spec, self.kept):
            return None
        loop = StepLoop(self.traced, spec, self.kept, self._counters if self.kept else ())
        loop.trace()
        return loop

    @property
    def _counters(self) -> list[Any]:
        return [] if self.held is None else self.held.counters


class GraphStep:
    """A step on whole batches, traced for each kind of them that comes.

    Args:
        traits: How it is to be traced.
        order: Says which ops wait for which.
        lean: Keep what a failed step needs in the host's memory.
    """

    def __init__(self, traits: Traits, order: Orderer | None = None, lean: bool = False) -> None:
        self._traits = traits
        self._order = order
        self._host = HostSnapshot() if lean and not traits.jit_compile else None
        self._holding = HoldingBack(traits)
        # By the graph that was traced; not all graphs stay.
        self._held: weakref.WeakKeyDictionary[Any, Held | None] = weakref.WeakKeyDictionary()
        waits = traits.trains and not traits.jit_compile and not lean
        # The first that can be. Steps like one that can't wait are not tried again.
        self._functions = [
            *([traits.function(self._waiting, traits.spec)] if waits else []),
            traits.function(self._as_it_is, traits.spec),
        ]
        self._traced: dict[Any, TracedStep] = {}
        self._loop: list[StepLoop | None] = []  # one, once it was asked for

    @property
    def branches(self) -> bool:
        """Whether it applies in a branch or a loop of its graph."""
        return self._holding.branches

    @property
    def committer(self) -> Committer | None:
        """What updates its variables, where its writes are held back."""
        held = [traced.held for traced in self._traced.values() if traced.held is not None]
        return held[-1].committer if held else None

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most."""
        if self._traits.jit_compile or self._host is not None:
            return 0
        return max((traced.spare_bytes for traced in self._traced.values()), default=0)

    def prepare(self, data: Any) -> list[Any]:
        """Trace the step for this batch, and what applies its gradients."""
        return self._find(data).graphs

    def graphs(self) -> list[Any]:
        """The graph that was traced first."""
        return [traced.graphs[0] for traced in self._traced.values()][:1]

    def loop(self) -> StepLoop | None:
        """The step in a loop over batches; None where it can't be run so."""
        if self._host is not None or self._order is not None or self._traits.spec is None:
            return None
        if not self._loop:
            self._loop.append(None)  # where tracing fails, it is not tried again
            self._loop[0] = self._find(None).loop(self._traits.spec)
        return self._loop[0]

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises anything at all, nothing has happened."""
        step = self._find(data)
        if self._host is not None:
            self._host.take(step.kept)
            return undone_by(self._host, lambda: step.run(data))
        saved = step.snapshot()
        if saved is None:
            return step.run(data)
        try:
            return step.run(data)
        except BaseException:
            if not step.is_through(saved):
                saved.restore()
            raise

    def _find(self, data: Any) -> TracedStep:
        kind = None if self._traits.spec is not None else batch.signature(data)
        if kind not in self._traced:
            self._traced[kind] = self._trace(() if self._traits.spec is not None else (data,))
        return self._traced[kind]

    def _trace(self, arguments: tuple[Any, ...]) -> TracedStep:
        while True:
            function = self._functions[0]
            traced = function.get_concrete_function(*arguments)
            held = self._held.get(traced.graph)
            if held is not None or len(self._functions) == 1:
                break
            del self._functions[0]
        graphs = [traced.graph]
        if self._traits.jit_compile:
            return TracedStep(function, graphs, [], traced=traced)
        if held is None:
            return TracedStep(function, graphs, written_handles(traced.graph), traced=traced)
        kept = held.early
        if held.splits:
            # What is written outlives a failure that comes later, in the commit.
            written = [*written_handles(traced.graph), *kept]
            kept = list({id(handle): handle for handle in written}.values())
            graphs += held.committer.prepare(traced.structured_outputs[1])
        return TracedStep(function, graphs, kept, held, traced)

    def _waiting(self, data: Any) -> Any:
        outputs, held = self._holding.trace(data)
        self._held[tf.compat.v1.get_default_graph()] = held
        if held is not None:  # of a trace that is thrown away the order does not matter
            self._put_in_order(outputs)
        return outputs

    def _as_it_is(self, data: Any) -> Any:
        outputs = self._traits.call(data)
        self._put_in_order(outputs)
        return outputs

    def _put_in_order(self, outputs: Any) -> None:
        if self._order is not None:
            impose_order(tf.compat.v1.get_default_graph(), outputs, self._order)
