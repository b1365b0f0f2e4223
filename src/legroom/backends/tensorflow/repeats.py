"""Updates of weights that are alike, traced once.

An optimizer's update is some twenty ops for each weight, and tracing them takes longer than
tracing the model and its gradients. Updates of two weights of one shape differ in nothing that
memory could tell, so one of them is traced; each other one is a single op in its place, which
knows what it stands for, and is spelled out again where the graph is walked.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from keras import optimizers

from legroom.backends.tensorflow.collect import inner_variable
from legroom.backends.tensorflow.shadow import replaced
from legroom.core.graphs import Graph, Node

__all__ = ["Repeat", "repeating_updates", "spell_out"]

_Edge: TypeAlias = tuple[int, int]  # a node's number, and which of its outputs

# Their update depends on a weight's shape and type alone; not so Muon's, which reads its name.
_ALIKE = (optimizers.Adam, optimizers.SGD, optimizers.RMSprop, optimizers.Adagrad,
          optimizers.Adadelta, optimizers.Adamax, optimizers.Nadam, optimizers.Ftrl,
          optimizers.Lion, optimizers.Lamb, optimizers.Adafactor)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Repeat:
    """An update that was not traced.

    Attributes:
        stand_in: The op in its place.
        ops: The ops of the traced update.
        reads: What the traced update reads, each with what this one reads instead: the gradient,
            the weight and its slots.
    """

    stand_in: Any
    ops: Sequence[Any]
    reads: Sequence[tuple[Any, Any]]


@contextlib.contextmanager
def repeating_updates() -> Iterator[list[Repeat]]:
    """Trace the update of one weight of each shape and type; yields those of the others."""
    found: list[Repeat] = []
    traced: dict[tuple[Any, ...], _Update] = {}

    def stand_in(original: Any) -> Any:
        def update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            if not _can_stand_in(graph, gradient, variable):
                return original(self, gradient, variable, learning_rate)
            key = (id(self), id(graph), tuple(variable.shape), variable.dtype)
            if key not in traced:
                before = graph.version
                result = original(self, gradient, variable, learning_rate)
                traced[key] = _Update(graph, before, gradient, variable)
                return result
            op = tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=gradient)
            found.append(Repeat(op, traced[key].ops, traced[key].reads(self, gradient, variable)))
            return None

        return update_step

    with contextlib.ExitStack() as stack:
        for kind in _ALIKE:
            stack.enter_context(replaced(kind, "update_step", stand_in(kind.update_step)))
        yield found


def _can_stand_in(graph: Any, gradient: Any, variable: Any) -> bool:
    return (
        isinstance(gradient, tf.Tensor)
        and not tf.executing_eagerly()
        and gradient.graph is graph
        and hasattr(variable, "handle")
        and gradient.dtype == variable.dtype
        and gradient.shape.is_fully_defined()
        and gradient.shape == variable.shape
    )


class _Update:
    """The update of a weight that was traced."""

    def __init__(self, graph: Any, before: int, gradient: Any, variable: Any) -> None:
        self.ops = graph.get_operations()[before:]
        self._graph = graph
        self._gradient = gradient
        self._variable = variable
        read = {id(tensor) for op in self.ops for tensor in op.inputs}
        self._given = {id(outer): inner for outer, inner in graph.captures if id(inner) in read}

    def reads(self, optimizer: Any, gradient: Any, variable: Any) -> list[tuple[Any, Any]]:
        """What it reads, each with what the update of another weight reads instead."""
        found = [(self._gradient, gradient)]
        weights = (self._variable, variable)
        first, second = (optimizer._get_variable_index(weight) for weight in weights)
        pairs = [weights]
        for slots in vars(optimizer).values():
            if isinstance(slots, list) and len(slots) == len(optimizer._trainable_variables):
                pairs.append((inner_variable(slots[first]), inner_variable(slots[second])))
        for one, other in pairs:
            if id(getattr(one, "handle", None)) in self._given and one is not other:
                found.append((self._given[id(one.handle)], self._graph.capture(other.handle)))
        return found


def spell_out(
    graph: Graph, repeats: Sequence[tuple[int, Sequence[int], Mapping[_Edge, _Edge]]]
) -> Graph:
    """Put what was not traced into a graph.

    Args:
        graph: A graph with stand-ins.
        repeats: For each, its number; the numbers of the nodes of the update that was traced; and
            where this one reads from instead of where that one does.
    """
    if not repeats:
        return graph
    by_number = {number: (members, reads) for number, members, reads in repeats}
    places: dict[int, int] = {}
    count = 0
    for number in range(len(graph.nodes)):
        # The copies come right before the node that they are behind, as if made there.
        count += len(by_number[number][0]) if number in by_number else 0
        places[number] = count
        count += 1
    nodes: list[Node] = []
    for number, node in enumerate(graph.nodes):
        inputs = [_moved(source, places) for source in node.inputs]
        controls = [places[control] for control in node.controls]
        if number not in by_number:
            nodes.append(dataclasses.replace(node, inputs=inputs, controls=controls))
            continue
        members, reads = by_number[number]
        copies = {member: len(nodes) + k for k, member in enumerate(members)}
        for member in members:
            copied = graph.nodes[member]
            inner = [copies[control] for control in copied.controls if control in copies]
            nodes.append(
                dataclasses.replace(
                    copied,
                    inputs=[
                        (copies[source[0]], source[1])
                        if source[0] in copies
                        else _moved(reads.get(source, source), places)
                        for source in copied.inputs
                    ],
                    # What writes waits for what its own weight has to wait for.
                    controls=[*inner, *controls] if len(inner) < len(copied.controls) else inner,
                )
            )
        # The stand-in itself does nothing but come last.
        done = [*controls, *copies.values()]
        nodes.append(dataclasses.replace(node, effect="none", inputs=[], controls=done))
    return dataclasses.replace(
        graph,
        nodes=nodes,
        arguments=[places[number] for number in graph.arguments],
        results=[_moved(result, places) for result in graph.results],
        late=frozenset(places[number] for number in graph.late),
    )


def _moved(edge: _Edge, places: Mapping[int, int]) -> _Edge:
    number, port = edge
    return places[number], port
