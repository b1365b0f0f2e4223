"""Updates of weights that are alike, traced once.

An optimizer's update is some twenty ops for each weight, and tracing them takes longer than
tracing the model and its gradients. Updates of two weights of one shape differ in nothing that
memory could tell, and most optimizers go over a weight entry by entry, so that even another shape
makes no difference but in size. So one of them is traced; each other one is a single op in its
place, which knows what it stands for, and is spelled out again where the graph is walked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from keras import optimizers

from legroom.backends import patches
from legroom.backends.parts import OPTIMIZER
from legroom.backends.tensorflow.commit.collect import inner_variable
from legroom.core.graphs import Axes, Graph, Node

__all__ = ["Repeat", "SpelledOut", "repeating_updates", "spell_out"]

_Edge: TypeAlias = tuple[int, int]  # a node's number, and which of its outputs

# Their update goes entry by entry: all it makes is of the weight's shape, or a single number.
_BY_ENTRY = (optimizers.Adam, optimizers.SGD, optimizers.RMSprop, optimizers.Adagrad,
             optimizers.Adadelta, optimizers.Adamax, optimizers.Nadam, optimizers.Ftrl,
             optimizers.Lion, optimizers.Lamb)  # fmt: skip
# Their update depends on a weight's shape and type alone; not so Muon's, which reads its name.
_BY_SHAPE = (optimizers.Adafactor,)


@dataclasses.dataclass(frozen=True)
class Repeat:
    """An update that was not traced.

    Attributes:
        stand_in: The op in its place.
        ops: The ops of the traced update.
        reads: What the traced update reads, each with what this one reads instead: the gradient,
            the weight and its slots.
        shapes: The shape of the weight that was traced, and of this one.
    """

    stand_in: Any
    ops: Sequence[Any]
    reads: Sequence[tuple[Any, Any]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


@contextlib.contextmanager
def repeating_updates() -> Iterator[list[Repeat]]:
    """Trace one update of those that are alike; yields the others."""
    found: list[Repeat] = []
    traced: dict[tuple[Any, ...], _Update] = {}

    def stand_in(by_entry: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        def update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            if not _can_stand_in(graph, gradient, variable):
                return original(self, gradient, variable, learning_rate)
            shape = tuple(variable.shape)
            # A single number is no measure: what is of its shape may be of any weight's.
            any_shape = by_entry and math.prod(shape) > 1
            key = (id(self), id(graph), "any" if any_shape else shape, variable.dtype)
            if key not in traced:
                before = graph.version
                result = original(self, gradient, variable, learning_rate)
                traced[key] = _Update(graph, before, gradient, variable)
                return result
            op = tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=gradient)
            like = traced[key]
            reads = like.reads(self, gradient, variable)
            found.append(Repeat(op, like.ops, reads, (like.shape, shape)))
            return None

        return update_step

    with contextlib.ExitStack() as stack:
        for kind in (*_BY_ENTRY, *_BY_SHAPE):
            make = functools.partial(stand_in, kind in _BY_ENTRY)
            stack.enter_context(patches.replaced(OPTIMIZER, "update_step", make, on=kind))
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
        self.shape = tuple(variable.shape)
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


class SpelledOut(NamedTuple):
    """An update that was not traced, by the numbers of nodes.

    Attributes:
        stand_in: The node in its place.
        members: The nodes of the update that was traced.
        reads: Where this one reads from instead of where that one does.
        axes: The axes of the weight that was traced, and of this one.
    """

    stand_in: int
    members: Sequence[int]
    reads: Mapping[_Edge, _Edge]
    axes: tuple[Axes, Axes]


def spell_out(graph: Graph, repeats: Sequence[SpelledOut]) -> Graph:
    """Put what was not traced into a graph with stand-ins."""
    if not repeats:
        return graph
    by_number = {each.stand_in: each for each in repeats}
    places: list[int] = []
    count = 0
    for number in range(len(graph.nodes)):
        # The copies come right before the node that they are behind, as if made there.
        count += len(by_number[number].members) if number in by_number else 0
        places.append(count)
        count += 1
    for node in graph.nodes:
        node.inputs = [(places[source], port) for source, port in node.inputs]
        node.controls = [places[control] for control in node.controls]
    nodes: list[Node] = []
    for number, node in enumerate(graph.nodes):
        if number in by_number:
            first = len(nodes)
            nodes += _copies(by_number[number], graph.nodes, places, first)
            # The stand-in itself does nothing but come last.
            node.effect, node.inputs = "none", []
            node.controls = [*node.controls, *range(first, len(nodes))]
        nodes.append(node)
    return Graph(
        nodes,
        [places[number] for number in graph.arguments],
        [(places[number], port) for number, port in graph.results],
        frozenset(places[number] for number in graph.late),
    )


def _copies(
    repeat: SpelledOut, nodes: Sequence[Node], places: Sequence[int], first: int
) -> Iterator[Node]:
    """The nodes of an update that was not traced, whose numbers begin with this one."""
    inner = {places[member]: first + k for k, member in enumerate(repeat.members)}
    reads = {
        (places[source], port): (places[other], other_port)
        for (source, port), (other, other_port) in repeat.reads.items()
    }
    waits = nodes[repeat.stand_in].controls
    traced, here = repeat.axes
    for member in repeat.members:
        node = nodes[member]
        controls = [inner[control] for control in node.controls if control in inner]
        if len(controls) < len(node.controls):
            controls += waits  # what writes waits for what its own weight has to wait for
        yield Node(
            node.name,
            node.effect,
            [
                (inner[edge[0]], edge[1]) if edge[0] in inner else reads.get(edge, edge)
                for edge in node.inputs
            ],
            controls,
            [
                (here, size[1]) if size is not None and size[0] == traced else size
                for size in node.outputs
            ],
            node.cheap,
            node.scratch,
            node.copies,
            node.work,
            node.body,
            node.turns,
        )
