"""A step whose ops run in a chosen order: the same ops, with control edges between them.

Called while the graph is still open, at the end of what is traced. What TensorFlow adds itself when
a trace ends (an op that touches a variable waits for those before it that do) is foreseen here, so
that no two edges make a circle.
"""

from __future__ import annotations

import graphlib
import itertools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from legroom.backends.tensorflow.effects.variables import resource_order
from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
from legroom.backends.tensorflow.graph.trace import with_shapes
from legroom.backends.tensorflow.graph.walk import walk_open_graph
from legroom.core.graphs import Graph, Node, Orderer

__all__ = ["impose_order"]


def impose_order(graph: Any, results: Any, order: Orderer) -> int:
    """Have the ops of a graph that is being traced run in an order.

    Args:
        graph: The FuncGraph.
        results: What the traced function is going to return.
        order: Says who waits for whom.

    Returns:
        How many ops wait for another that they would not have waited for.
    """
    operations = graph.get_operations()
    stateful = [op for op in operations if auto_control_deps.op_is_stateful(op)]
    tensors = [x for x in tf.nest.flatten(results, expand_composites=True) if tf.is_tensor(x)]
    shaped = with_shapes(graph, _batch(graph), first=0)
    by_name = {op.name: op for op in operations}
    walked = walk_open_graph(
        shaped,
        [shaped.get_tensor_by_name(x.name) for x in tensors if x.graph is graph],
        [shaped.get_operation_by_name(op.name) for op in stateful],
    )
    _join_parts(walked)
    for node in walked.nodes:
        if node.name not in by_name:
            node.fused = True  # inside of a loop, which is an op by itself: it can't be bound
    place = {node.name: number for number, node in enumerate(walked.nodes)}
    foreseen = [
        (other, op) for op, others in resource_order(operations).items() for other in others
    ]
    # Others than those on resources run one after the other.
    alone = [op for op in stateful if not any(x.dtype == tf.resource for x in op.inputs)]
    foreseen += itertools.pairwise(alone)
    for before, after in foreseen:
        if before.name in place and after.name in place:
            walked.nodes[place[after.name]].controls.append(place[before.name])
    names = [(walked.nodes[one].name, walked.nodes[other].name) for one, other in order(walked)]
    edges = [(by_name[before], by_name[after]) for before, after in names]
    if _has_circle(operations, [*foreseen, *edges]):
        return 0
    for before, after in edges:
        after._add_control_input(before)
    return len(edges)


def _has_circle(operations: list[Any], edges: list[tuple[Any, Any]]) -> bool:
    """Whether ops would wait for themselves: TensorFlow's optimizer crashes over such a graph.

    Args:
        operations: The ops, with what they wait for as they are.
        edges: Pairs of ops of which the second is to wait for the first as well.
    """
    waits = {
        op.name: {*(x.op.name for x in op.inputs), *(other.name for other in op.control_inputs)}
        for op in operations
    }
    for before, after in edges:
        waits[after.name].add(before.name)
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError:
        return True
    return False


def _batch(graph: Any) -> list[tf.TensorSpec]:
    """The parts of a batch of which sizes at any number of samples can be told."""
    captured = {id(inner) for _, inner in graph.captures}
    given = [tensor for tensor in graph.inputs if id(tensor) not in captured]
    return [
        tf.TensorSpec((TRACED_SIZE, *x.shape[1:]) if x.shape.rank else x.shape, x.dtype)
        for x in given
    ]


def _join_parts(graph: Graph) -> None:
    """Have the nodes of one op (an IdentityN, which is walked in parts) wait for all of its inputs.

    TensorFlow's optimizer takes it apart later, but refuses a graph that has a circle before.
    """
    parts: dict[str, list[Node]] = {}
    for node in graph.nodes:
        parts.setdefault(node.name, []).append(node)
    for nodes in parts.values():
        if len(nodes) > 1:
            sources = [source for node in nodes for source, _ in node.inputs]
            for node in nodes:
                node.controls += sources
