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
from typing import Any

import tensorflow as tf
from keras import optimizers

from legroom.backends.tensorflow.shadow import replaced
from legroom.core.graphs import Graph, Node

__all__ = ["Repeat", "repeating_updates", "spell_out"]

# Their update depends on a weight's shape and type alone; not so Muon's, which reads its name.
_ALIKE = (optimizers.Adam, optimizers.SGD, optimizers.RMSprop, optimizers.Adagrad,
          optimizers.Adadelta, optimizers.Adamax, optimizers.Nadam, optimizers.Ftrl,
          optimizers.Lion, optimizers.Lamb, optimizers.Adafactor)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Repeat:
    """An update that was not traced.

    Attributes:
        stand_in: The op in its place, which reads the gradient as its second input.
        gradient: The gradient that the traced update reads.
        ops: The ops of the traced update.
    """

    stand_in: Any
    gradient: Any
    ops: Sequence[Any]


@contextlib.contextmanager
def repeating_updates() -> Iterator[list[Repeat]]:
    """Trace the update of one weight of each shape and type; yields those of the others."""
    found: list[Repeat] = []
    traced: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def stand_in(original: Any) -> Any:
        def update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            if not _can_stand_in(graph, gradient, variable):
                return original(self, gradient, variable, learning_rate)
            key = (id(self), id(graph), tuple(variable.shape), variable.dtype)
            if key not in traced:
                before = graph.version
                result = original(self, gradient, variable, learning_rate)
                traced[key] = gradient, _ops_since(graph, before)
                return result
            op = tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=gradient)
            found.append(Repeat(op, *traced[key]))
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


def _ops_since(graph: Any, version: int) -> list[Any]:
    return graph.get_operations()[version:]


def spell_out(
    graph: Graph,
    repeats: Sequence[tuple[int, tuple[int, int], Sequence[int]]],
) -> Graph:
    """Put what was not traced into a graph.

    Args:
        graph: A graph with stand-ins.
        repeats: For each, its number; the edge that the traced update reads the gradient from; and
            the numbers of the nodes of that update.
    """
    if not repeats:
        return graph
    by_number = {number: (edge, members) for number, edge, members in repeats}
    places: dict[int, int] = {}
    count = 0
    for number in range(len(graph.nodes)):
        # The copies come right before the node that they are behind, as if made there.
        count += len(by_number[number][1]) if number in by_number else 0
        places[number] = count
        count += 1
    nodes: list[Node] = []
    for number, node in enumerate(graph.nodes):
        inputs = [_moved(source, places, {}) for source in node.inputs]
        controls = [places[control] for control in node.controls]
        if number in by_number:
            edge, members = by_number[number]
            copies = {member: len(nodes) + k for k, member in enumerate(members)}
            *inputs, gradient = inputs
            nodes += [
                _copy(graph.nodes[member], places, copies, edge, gradient, controls)
                for member in members
            ]
            controls = [*controls, *copies.values()]
        nodes.append(dataclasses.replace(node, inputs=inputs, controls=controls))
    return dataclasses.replace(
        graph,
        nodes=nodes,
        arguments=[places[number] for number in graph.arguments],
        results=[_moved(result, places, {}) for result in graph.results],
        late=frozenset(places[number] for number in graph.late),
    )


def _copy(
    node: Node,
    places: Mapping[int, int],
    copies: Mapping[int, int],
    read: tuple[int, int],
    gradient: tuple[int, int],
    controls: Sequence[int],
) -> Node:
    inner = [copies[control] for control in node.controls if control in copies]
    return dataclasses.replace(
        node,
        inputs=[
            gradient if source == read else _moved(source, places, copies) for source in node.inputs
        ],
        # What writes waits for what its own weight has to wait for, not for that of the other.
        controls=[*inner, *controls] if len(inner) < len(node.controls) else inner,
    )


def _moved(
    edge: tuple[int, int], places: Mapping[int, int], copies: Mapping[int, int]
) -> tuple[int, int]:
    number, port = edge
    return copies.get(number, places[number]), port
