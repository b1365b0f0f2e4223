"""A step traced so that nothing is written before all of it is computed.

*fused*: one function computes the gradients, holds every write back until they are finished, and
then writes. For models whose state is small: it costs nothing over Keras's own function.

*split*: one function computes the gradients, others apply them in units. For large models, where
computing all new values before writing any would need too much memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.commit.born_outside import born_outside
from legroom.backends.tensorflow.commit.collect import Applied, collecting
from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.commit.units import works_in_units
from legroom.backends.tensorflow.effects.variables import defer_writes, touches, written_handles
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["Held", "HoldingBack"]

# Up to this state a second copy of it costs less than a second function call does.
_SMALL_STATE = 32 * 2**20


@dataclasses.dataclass(frozen=True)
class Held:
    """How a traced step holds its writes back.

    Attributes:
        committer: What updates the variables.
        splits: Whether the function returns the gradients too, for the committer to apply.
        early: The variables that it writes before nothing can fail any more.
        counters: The small variables that every update moves.
    """

    committer: Committer
    splits: bool
    early: list[Any]
    counters: list[Any]


class HoldingBack:
    """Traces a step with its writes held back, where that can be.

    Args:
        traits: How the step is to be traced.

    Attributes:
        branches: Whether the step applies an optimizer in a branch or a loop of its graph.
    """

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._committer: Committer | None = None
        self.branches = False

    def trace(self, data: Any) -> tuple[Any, Held | None]:
        """The step's body, called while a function is traced.

        Returns:
            What the function returns, and how its writes are held back; None where they are not,
            and the trace is of no use.
        """
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
            if elsewhere or not self._can_wait(graph, graph.get_operations()[traced:], applied):
                return outputs, None
            return self._hold_back(graph, outputs, applied[0])
        except Exception as error:
            say_left_out("legroom keeps a copy of the weights in each step", in_a_line(error))
            return outputs, None

    def _can_wait(self, graph: Any, later: Sequence[Any], applied: Sequence[Applied]) -> bool:
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
            and (self._committer is None or self._committer.is_for(applied[0]))
            # Code after `apply` that reads the weights must see the new ones.
            and not touches(graph, later, applied[0].written())
            and not _sets_rate(graph, later, applied[0])
        )

    def _hold_back(self, graph: Any, outputs: Any, call: Applied) -> tuple[Any, Held]:
        gradients = [gradient for gradient in call.gradients if gradient is not None]
        writes = defer_writes(graph, gradients)
        if self._committer is None:
            with born_outside():
                self._committer = Committer(call.optimizer, call.variables, self._traits)
        counters = [variable.handle for variable in call.written() if variable.shape.rank == 0]
        splits = self._committer.state_bytes > _SMALL_STATE
        if splits:
            writes.wait_for([writes.barrier])
        else:
            writes.wait_for(self._committer.update_at_once(call.gradients, writes.barrier))
        held = Held(self._committer, splits, writes.early, counters)
        return (outputs, call.gradients) if splits else outputs, held


def _sets_rate(graph: Any, operations: Sequence[Any], call: Applied) -> bool:
    """Whether ops that come after an `apply` set its learning rate, which is for the next step."""
    if call.rate is None:
        return False
    return any(h is call.rate.handle for h in written_handles(graph, among=operations))
