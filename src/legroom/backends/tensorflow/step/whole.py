"""A step on its whole batch, that happens wholly or not at all.

Ways to the same result, the first that can be:

*compiled*: one XLA program allocates before it computes and writes after it has, so it is whole by
itself and runs unchanged.

*fused*: one function computes the gradients, holds every write back until they are finished, and
then writes. For models whose state is small: it costs nothing over Keras's own function.

*split*: one function computes the gradients, others apply them in units. For large models, where
computing all new values before writing any would need too much memory.

*kept*: the step as it is, with the old values of all it writes kept until it is through. For steps
that apply several optimizers in turn, and for optimizers that do more than update each variable.

*lean*: the same with the old values in the host's memory. It takes the device memory that Keras's
own step takes, and the time to copy: for a model whose gradients do not fit beside its state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from legroom.backends.keras.python_state import PythonState
from legroom.backends.tensorflow.commit.born_outside import born_outside
from legroom.backends.tensorflow.commit.collect import Applied, Since, collecting
from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.commit.units import works_in_units
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.device.survivable import survivable
from legroom.backends.tensorflow.graph.op_order import impose_order
from legroom.backends.tensorflow.step import batch
from legroom.backends.tensorflow.step.careful import is_users_own
from legroom.backends.tensorflow.step.effects import (
    HostSnapshot,
    Snapshot,
    defer_writes,
    handle_bytes,
    touches,
    undone_by,
    written_handles,
)
from legroom.backends.tensorflow.step.traits import Traits
from legroom.backends.tensorflow.step.write_log import logging_writes
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.graphs import Orderer

__all__ = ["EagerStep", "GraphStep", "WholeStep"]

# Up to this state a second copy of it costs less than a second function call does.
_SMALL_STATE = 32 * 2**20


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


class _SeveralApplies(BaseException):
    """An eager step applies more than once, or goes on after it: `apply` can't wait for its end."""


class GraphStep:
    """A traced step on whole batches."""

    def __init__(self, traits: Traits, order: Orderer | None = None, lean: bool = False) -> None:
        self._traits = traits
        self._order = order
        self._host = HostSnapshot() if lean and not traits.jit_compile else None
        if traits.jit_compile:
            self._mode = "compiled"
        elif lean or not traits.trains:
            self._mode = "kept"
        else:
            self._mode = "fused"
        self._function = self._traced(self._fused if self._mode == "fused" else traits.call)
        self._handles: dict[int, Any] = {}
        self._early: list[Any] = []  # what the last trace writes before it can't fail any more
        self._counters: list[Any] = []  # small variables that every update moves
        self.committer: Committer | None = None
        self._seen: dict[Any, list[Any]] = {}
        self.branches = False  # whether it applies in a branch or a loop of its graph

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most."""
        if self._mode == "compiled" or self._host is not None:
            return 0
        if self._mode == "split":
            assert self.committer is not None
            return self.committer.held_bytes
        if self.committer is not None:
            return self.committer.held_bytes + self.committer.state_bytes
        return sum(handle_bytes(handle) for handle in self._handles.values())

    def prepare(self, data: Any) -> list[Any]:
        """Trace the step for this batch, and what applies its gradients."""
        kind = None if self._traits.spec is not None else batch.signature(data)
        if kind in self._seen:
            return self._seen[kind]
        arguments = () if self._traits.spec is not None else (data,)
        traced = self._function.get_concrete_function(*arguments)
        if self._mode == "unfit":
            self._keep()
            traced = self._function.get_concrete_function(*arguments)
        if self._mode in ("split", "kept"):
            # What is written outlives a failure that comes later: in the commit, or half-way.
            for handle in written_handles(traced.graph):
                self._handles[id(handle)] = handle
        self._seen[kind] = [traced.graph]
        if self._mode == "split":
            assert self.committer is not None
            self._seen[kind] += self.committer.prepare(traced.structured_outputs[1])
        return self._seen[kind]

    def graphs(self) -> list[Any]:
        """The graph that was traced first."""
        return [graphs[0] for graphs in self._seen.values()][:1]

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises anything at all, nothing has happened."""
        self.prepare(data)
        self._handles.update((id(handle), handle) for handle in self._early)
        if self._host is not None:
            self._host.take(self._handles.values())
            return undone_by(self._host, lambda: self._run(data))
        if not self._handles:
            return self._run(data)
        saved = Snapshot([*self._handles.values(), *self._counters])
        try:
            return self._run(data)
        except BaseException:
            # An interrupt may come when everything is done, and before Python knows.
            if not saved.moved(self._counters):
                saved.restore()
            raise

    def _run(self, data: Any) -> Any:
        with survivable():
            result = self._function(data)
        if self._mode != "split":
            return result
        outputs, gradients = result[0], list(result[1])
        del result  # a gradient is free as soon as it is applied
        assert self.committer is not None
        self.committer.update(gradients)
        return outputs

    def _keep(self) -> None:
        self._mode = "kept"
        self._function = self._traced(self._traits.call)
        self._handles.clear()
        self._early, self._counters = [], []
        self.committer = None
        self._seen.clear()

    def _traced(self, body: Callable[[Any], Any]) -> Any:
        """A function of the step, its ops in order where that was asked for."""

        def ordered(data: Any) -> Any:
            outputs = body(data)
            # Of a trace that is thrown away the order does not matter.
            if self._order is not None and self._mode != "unfit":
                impose_order(tf.compat.v1.get_default_graph(), outputs, self._order)
            return outputs

        return self._traits.function(ordered, self._traits.spec)

    def _fused(self, data: Any) -> Any:
        """The body that is traced: collect, hold back, write."""
        applied: list[Applied] = []
        graph = tf.compat.v1.get_default_graph()
        traced = 0

        def catch(call: Applied) -> None:
            nonlocal traced
            applied.append(call)
            traced = len(graph.get_operations())

        elsewhere: list[str] = []
        with collecting(
            catch,
            on_function=lambda: elsewhere.append("function"),
            on_elsewhere=lambda: elsewhere.append("branch"),
            builds_outside=self._traits.is_keras_own,
        ):
            outputs = self._traits.call(data)
        self.branches = self.branches or "branch" in elsewhere
        # Whatever goes wrong here: a trace must run to its end, or variables that it created are
        # never initialised.
        try:
            if elsewhere or not self._can_hold_back(
                graph, graph.get_operations()[traced:], applied
            ):
                self._mode = "unfit"
                return outputs
            return self._held_back(graph, outputs, applied[0])
        except Exception as error:
            self._mode = "unfit"
            say_left_out("legroom keeps a copy of the weights in each step", in_a_line(error))
            return outputs

    def _can_hold_back(self, graph: Any, later: Sequence[Any], applied: Sequence[Applied]) -> bool:
        """Whether what a step writes can wait until all is computed.

        Args:
            graph: The step's graph.
            later: Its ops that come after the last `apply`.
            applied: Its calls of `apply`.
        """
        return (
            len(applied) == 1
            and works_in_units(applied[0].optimizer)
            # Another trace of the same function may apply another optimizer.
            and (self.committer is None or self.committer.is_for(applied[0]))
            # Code after `apply` that reads the weights must see the new ones.
            and not touches(graph, later, applied[0].written())
            and not _sets_rate(graph, later, applied[0])
        )

    def _held_back(self, graph: Any, outputs: Any, call: Applied) -> Any:
        """Have the writes of a step wait until all is computed; what its function returns."""
        gradients = [gradient for gradient in call.gradients if gradient is not None]
        writes = defer_writes(graph, gradients)
        if self.committer is None:
            with born_outside():
                self.committer = Committer(call.optimizer, call.variables, self._traits)
            self._counters = [
                variable.handle for variable in call.written() if variable.shape.rank == 0
            ]
            if self.committer.state_bytes > _SMALL_STATE:
                self._mode = "split"
        if self._mode == "split":
            writes.wait_for([writes.barrier])
        else:
            writes.wait_for(self.committer.update_at_once(call.gradients, writes.barrier))
        # The first trace, in which variables are created, is followed by another one.
        self._early = writes.early
        return (outputs, call.gradients) if self._mode == "split" else outputs


def _sets_rate(graph: Any, operations: Sequence[Any], call: Applied) -> bool:
    """Whether ops that come after an `apply` set its learning rate, which is for the next step."""
    if call.rate is None:
        return False
    return any(h is call.rate.handle for h in written_handles(graph, among=operations))


class EagerStep:
    """An eager step on whole batches."""

    def __init__(self, traits: Traits, lean: bool = False) -> None:
        self._traits = traits
        self._lean = lean
        self._as_it_is = lean
        self.committer: Committer | None = None
        self.branches = False

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most, once it has run."""
        return 0 if self._lean or self.committer is None else self.committer.held_bytes

    def prepare(self, data: Any) -> list[Any]:
        """Nothing to trace."""
        return []

    def graphs(self) -> list[Any]:
        """None were traced."""
        return []

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises anything at all, nothing has happened."""
        python = PythonState(self._traits.origin)
        try:
            if not self._as_it_is:
                try:
                    return self._collected(data)
                except _SeveralApplies:
                    self._as_it_is = True
                    python.restore()
            return self._logged(data)
        except Exception as error:
            if oom.is_oom(error) or not is_users_own(error):
                python.restore()  # as if the step had not begun
            raise

    def _logged(self, data: Any) -> Any:
        with logging_writes(on_host=self._lean) as log:

            def logged(inputs: Any) -> Any:
                with logging_writes(log):
                    return self._traits.call(inputs)

            return undone_by(log, lambda: self._traits.run(logged, data))

    def _collected(self, data: Any) -> Any:
        applied: list[Applied] = []
        since = Since()

        def catch(call: Applied) -> None:
            if applied or not works_in_units(call.optimizer):
                raise _SeveralApplies
            applied.append(call)
            since.begin(call)

        def several() -> None:
            raise _SeveralApplies

        with logging_writes() as log:

            def body(inputs: Any) -> Any:
                with (
                    logging_writes(log),
                    collecting(catch, on_function=several, on_elsewhere=several),
                ):
                    return self._traits.call(inputs)

            try:
                outputs = self._traits.run(body, data)
                if since.end():
                    raise _SeveralApplies  # it goes on with the weights, which must be the new ones
            except BaseException:
                since.end()
                log.restore()
                raise
        if applied:
            call = applied.pop()
            if self.committer is None or not self.committer.is_for(call):
                self.committer = Committer(call.optimizer, call.variables, self._traits)
            gradients = list(call.gradients)
            del call
            self.committer.update(gradients, log)
        return outputs
