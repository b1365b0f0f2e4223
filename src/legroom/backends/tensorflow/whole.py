"""A step on its whole batch, that happens wholly or not at all.

Three ways to the same result:

*fused*: one function computes the gradients, holds every write back until they are finished, and
then writes. For models whose state is small: it costs nothing over Keras's own function.

*split*: one function computes the gradients, a second one applies them in units. For large
models, where computing all new values before writing any would need too much memory.

*kept*: the step as it is, with the old values of all it writes kept until it is through. For steps
that apply several optimizers in turn, and for optimizers that do more than update each variable.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow import batch, oom
from legroom.backends.tensorflow.collect import Applied, Since, collecting
from legroom.backends.tensorflow.commit import Committer, state_bytes, works_in_units
from legroom.backends.tensorflow.effects import (
    HostSnapshot,
    Snapshot,
    defer_writes,
    touches,
    written_handles,
)
from legroom.backends.tensorflow.ordered import impose_order
from legroom.backends.tensorflow.survivable import survivable
from legroom.backends.tensorflow.traits import Traits
from legroom.backends.tensorflow.writes import logging_writes
from legroom.core.graphs import Orderer

__all__ = ["EagerStep", "GraphStep", "WholeStep", "apply_gradients"]

# Up to this state a second copy of it costs less than a second function call does.
_SMALL_STATE = 16 * 2**20


class WholeStep:
    """A step on whole batches, in a graph or eagerly.

    Args:
        traits: How it is to be traced.
        order: Says which ops wait for which; None leaves them as they come. An eager step's come
            in the order of its code.
    """

    def __init__(self, traits: Traits, order: Orderer | None = None) -> None:
        self._step: Any = EagerStep(traits) if traits.eager else GraphStep(traits, order)

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises out of memory, nothing has happened."""
        return self._step(data)

    def prepare(self, data: Any) -> list[Any]:
        """Trace the step for this batch without running it.

        Returns:
            The graphs that will run, one after the other; none for an eager step.
        """
        return self._step.prepare(data)

    def graphs(self) -> list[Any]:
        """The graph that was traced first, which is the step as it is for any batch."""
        return self._step.graphs()


class _SeveralApplies(BaseException):
    """An eager step applies more than once, or goes on after it: `apply` can't wait for its end."""


class GraphStep:
    """A traced step on whole batches."""

    def __init__(self, traits: Traits, order: Orderer | None = None) -> None:
        self._traits = traits
        self._order = order
        self._mode = "fused" if traits.trains else "kept"
        self._function = self._traced(self._fused if traits.trains else traits.call)
        self._handles: dict[int, Any] = {}
        self._early: list[Any] = []  # what the last trace writes before it can't fail any more
        self._on_host = False
        self._committer: Committer | None = None
        self._commit: Any = None
        self._seen: dict[int | None, list[Any]] = {}

    def prepare(self, data: Any) -> list[Any]:
        """Trace the step for this batch, and what applies its gradients."""
        size = None if self._traits.spec is not None else batch.batch_size(data)
        if size in self._seen:
            return self._seen[size]
        arguments = () if self._traits.spec is not None else (data,)
        traced = self._function.get_concrete_function(*arguments)
        if self._mode == "unfit":
            self._keep()
            traced = self._function.get_concrete_function(*arguments)
        if self._mode != "fused":
            # What is written outlives a failure that comes later: in the commit, or half-way.
            for handle in written_handles(traced.graph):
                self._handles[id(handle)] = handle
        self._seen[size] = [traced.graph]
        if self._mode == "split":
            gradients = traced.structured_outputs[1]
            self._seen[size].append(self._commit.get_concrete_function(gradients).graph)
        return self._seen[size]

    def graphs(self) -> list[Any]:
        """The graph that was traced first."""
        return [graphs[0] for graphs in self._seen.values()][:1]

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises out of memory, nothing has happened."""
        self.prepare(data)
        saved = self._save()
        failed = False
        try:
            with survivable():
                result = self._function(data)
        except tf.errors.OpError as error:
            if not oom.is_oom(error):
                raise
            if saved is not None:
                saved.restore()
            if self._mode != "kept" or self._on_host or not self._traits.trains:
                raise
            failed = True
        if failed:
            # Keeping the old values may be what was too much: keep them in the host's memory.
            del saved
            gc.collect()
            self._on_host = True
            return self(data)
        if self._mode == "split":
            outputs, gradients = result
            del result
            self._apply(gradients, saved)
            return outputs
        return result

    def _save(self) -> Any:
        self._handles.update((id(handle), handle) for handle in self._early)
        if not self._handles:
            return None
        if self._on_host:
            return HostSnapshot(self._handles.values())
        return Snapshot(self._handles.values())

    def _keep(self) -> None:
        self._mode = "kept"
        self._function = self._traced(self._traits.call)
        self._handles.clear()
        self._early = []
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

        with collecting(catch):
            outputs = self._traits.call(data)
        if (
            len(applied) != 1
            or not works_in_units(applied[0].optimizer)
            # Another trace of the same function may apply another optimizer.
            or (self._committer is not None and not self._committer.is_for(applied[0]))
            # Whoever goes on with the weights after `apply` must see the new ones.
            or touches(graph, graph.get_operations()[traced:], applied[0].written())
        ):
            # A trace must run to its end, or variables that it created are never initialised.
            self._mode = "unfit"
            return outputs
        call = applied[0]
        gradients = [gradient for gradient in call.gradients if gradient is not None]
        writes = defer_writes(graph, gradients)
        if self._committer is None:
            with tf.init_scope():
                self._committer = Committer(call.optimizer, call.variables)
            if state_bytes(call.optimizer, call.variables) > _SMALL_STATE:
                self._mode = "split"
                self._commit = self._traits.function(self._committer.update)
        if self._mode == "split":
            writes.wait_for([writes.barrier])
        else:
            writes.wait_for(self._committer.update_at_once(call.gradients, writes.barrier))
        # The first trace, in which variables are created, is followed by another one.
        self._early = writes.early
        return (outputs, call.gradients) if self._mode == "split" else outputs

    def _apply(self, gradients: Any, saved: Snapshot | None) -> None:
        assert self._committer is not None
        apply_gradients(self._committer, self._commit, gradients, saved)


class EagerStep:
    """An eager step on whole batches."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._several = False
        self._committer: tuple[Any, Committer] | None = None

    def prepare(self, data: Any) -> list[Any]:
        """Nothing to trace."""
        return []

    def graphs(self) -> list[Any]:
        """None were traced."""
        return []

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises out of memory, nothing has happened."""
        if not self._several:
            try:
                return self._collected(data)
            except _SeveralApplies:
                self._several = True
        with logging_writes() as log:

            def logged(inputs: Any) -> Any:
                with logging_writes(log):
                    return self._traits.call(inputs)

            try:
                return self._traits.run(logged, data)
            except Exception as error:
                if oom.is_oom(error):
                    log.restore()
                raise

    def _collected(self, data: Any) -> Any:
        applied: list[Applied] = []
        since = Since()

        def catch(call: Applied) -> None:
            if applied or not works_in_units(call.optimizer):
                raise _SeveralApplies
            applied.append(call)
            since.begin(call)

        with logging_writes() as log:

            def body(inputs: Any) -> Any:
                with logging_writes(log), collecting(catch):
                    return self._traits.call(inputs)

            try:
                outputs = self._traits.run(body, data)
                if since.end():
                    raise _SeveralApplies  # it goes on with the weights, which must be the new ones
            except BaseException as error:
                since.end()
                if isinstance(error, _SeveralApplies) or oom.is_oom(error):
                    log.restore()
                raise
        if applied:
            call = applied.pop()
            if self._committer is None or self._committer[0] is not call.optimizer:
                self._committer = (call.optimizer, Committer(call.optimizer, call.variables))
            committer = self._committer[1]
            apply_gradients(committer, committer.update, call.gradients, log)
        return outputs


def apply_gradients(committer: Committer, update: Any, gradients: Any, saved: Any) -> None:
    """Commit gradients; after a failure either nothing is written or all of it is.

    Args:
        committer: The committer whose progress tells what was written.
        update: Its `update`, or a function traced from it.
        gradients: One for each of its variables.
        saved: What to put back (the step's other writes) if nothing was written.
    """
    committer.reset()
    try:
        update(gradients)
        return
    except Exception as error:
        if not oom.is_oom(error):
            raise
        if committer.done == 0:
            if saved is not None:
                saved.restore()
            raise
    # Some units are written: the update must be completed. The error is dropped here, outside of
    # its except block, so that what its traceback holds is free.
    gc.collect()
    committer.finish(gradients)
