"""A traced step as nodes that the executor's model can run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from legroom.backends.tensorflow.device.threads import executor_threads
from legroom.backends.tensorflow.graph.axes import axes_of
from legroom.backends.tensorflow.graph.durations import work_of
from legroom.backends.tensorflow.graph.repeats import Repeat, SpelledOut, spell_out
from legroom.backends.tensorflow.graph.scratch import WITH_SCRATCH, scratch_of
from legroom.backends.tensorflow.graph.stepgraph import StepGraph
from legroom.backends.tensorflow.graph.trace import FREE, PASS_ON, REUSE
from legroom.core.graphs import Graph, Node, Size, StepWalk

__all__ = ["input_sizes", "walk_open_graph", "walk_slices", "walk_step"]

_NOTHING = FREE | {"ShapeN", "Assert", "ResourceApplyAdam", "ResourceApplyGradientDescent"}
# What TensorFlow's executor runs at once.
_CHEAP = {"NoOp", "Const", "Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "Shape",
          "ShapeN", "Rank", "Size", "Placeholder", "StopGradient", "PreventGradient",
          "VarHandleOp", "EnsureShape", "BiasAddGrad"}  # fmt: skip
# Of these what comes out is small, and does not depend on the batch where what goes in does not.
_COMPUTED = {"StridedSlice", "Pack", "Sub", "AddV2", "Mul", "Prod", "Cast", "ConcatV2", "GatherV2",
             "Range", "Maximum", "FloorDiv", "FloorMod", "Identity", "InvertPermutation",
             "BroadcastArgs", "BroadcastGradientArgs", "Reshape", "ExpandDims"}  # fmt: skip
_VARIABLES = {"ReadVariableOp": "read", "AssignVariableOp": "assign",
              "AssignAddVariableOp": "update", "AssignSubVariableOp": "update"}  # fmt: skip
_LISTS = {"TensorListPushBack": "push", "TensorListSetItem": "set", "TensorListPopBack": "pop",
          "TensorListGetItem": "get", "TensorListReserve": "none",
          "EmptyTensorList": "none", "TensorListLength": "none",
          "TensorListElementShape": "none"}  # fmt: skip
# What may write over its first input, and no other: a max pooling's gradient, and losses with the
# gradient that they make on the way.
_OVER_FIRST = {"MaxPoolGrad", "SoftmaxCrossEntropyWithLogits",
               "SparseSoftmaxCrossEntropyWithLogits"}  # fmt: skip
# Constants of more entries than this are data: they are not compared.
_FEW = 1000
# The gradients of transposed convolutions, as they are made: of the kernel, of the inputs.
_TRANSPOSED = {("Conv2DBackpropFilter", "Conv2D"), ("Conv3DBackpropFilterV2", "Conv3D")}
_CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "If": "then_branch",
          "StatelessIf": "then_branch"}  # fmt: skip
# What TensorFlow's optimizers make one op of, in the forward pass: a convolution or product, its
# bias, what is added to it and its activation.
_FUSED = {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2", "BatchMatMulV3",
          "BiasAdd", "Add", "AddV2", "Mul", "FusedBatchNormV3", "Pad", "Relu", "Relu6", "Elu",
          "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Softplus"}  # fmt: skip


def walk_slices(step: StepGraph) -> StepWalk:
    """A step that was traced for slices, to be run by the executor's model."""
    return StepWalk(walk_step(step), step.held, input_sizes(step), executor_threads())


def walk_step(step: StepGraph) -> Graph:
    """The graph of a step that was traced for `TRACED_SIZE` samples."""
    graph = _Walker(step.graph, step.repeats).graph(step.graph, list(step.graph.inputs))
    data = {name for name, _, _ in step.inputs}
    graph.late = frozenset(n for n in graph.arguments if graph.nodes[n].name in data)
    return graph


def walk_open_graph(graph: Any, results: Sequence[Any], effects: Sequence[Any]) -> Graph:
    """A graph that is still being traced, or a copy of one.

    Args:
        graph: The graph.
        results: The tensors that it is going to return.
        effects: The ops that have to run whether or not the results depend on them.
    """
    # Each op is there by itself: they are given others to wait for, which keeps twins apart.
    walker = _Walker(graph, (), optimized=False)
    return walker.graph(graph, [], results, _needed(graph, [*(x.op for x in results), *effects]))


def input_sizes(step: StepGraph) -> list[Size]:
    """The sizes of the parts of a batch."""
    return [
        (axes_of(shape), float(tf.as_dtype(dtype).size or 8)) for _, shape, dtype in step.inputs
    ]


class _Walker:
    def __init__(self, root: Any, repeats: Sequence[Repeat], optimized: bool = True) -> None:
        self._root = root
        self._repeats = repeats
        self._optimized = optimized  # whether of twins one is left
        self._bodies: dict[tuple[str, str], Graph] = {}
        self._turns: dict[str, int] = {}

    def graph(
        self, graph: Any, arguments: list[Any], results: Any = None, ops: Any = None
    ) -> Graph:
        """A graph's nodes, without those that nothing depends on."""
        results = graph.outputs if results is None else results
        ops = _needed(graph, _ends(graph)) if ops is None else ops
        if not any(op.type in ("While", "StatelessWhile") for op in ops):
            ops.sort(key=_is_moved_back)
        _put_kernels_last(ops)
        updates = {op.name: id(each.ops) for each in self._repeats for op in each.ops}
        twins = _twins(ops, updates) if self._optimized else {}
        # Places first: a loop's accumulators are made after the loop that reads them.
        place: dict[str, int] = {}
        ports: dict[Any, tuple[int, int]] = {}  # by tensor
        count = 0
        for op in ops:
            if op.name in twins:
                first = twins[op.name]
                place[op.name] = place[first.name]
                for tensor, other in zip(op.outputs, first.outputs, strict=True):
                    ports[tensor.ref()] = ports[other.ref()]
                continue
            place[op.name] = count
            for port, tensor in enumerate(op.outputs):
                split = op.type == "IdentityN"
                ports[tensor.ref()] = (count + port, 0) if split else (count, port)
            count += len(op.outputs) if op.type == "IdentityN" else 1
        nodes: list[Node] = []
        known, unread = _known(ops), _unread(ops, results)
        for op in ops:
            if op.name in twins:
                continue
            if op.name in known:
                nodes.append(Node(op.name, "none", [], [], [None] * len(op.outputs), cheap=True))
                continue
            inputs = [ports[tensor.ref()] for tensor in op.inputs]
            if op.type == "IdentityN":
                # TensorFlow's optimizer takes it apart; as one op it would be a barrier.
                nodes += [Node(op.name, "alias", [edge], [], [None], cheap=True) for edge in inputs]
            else:
                controls = [place[c.name] for c in op.control_inputs if c.name in place]
                node = self._node(op, inputs, controls)
                if op.name in unread:
                    node.effect = "none"
                nodes.append(node)
        _run_ahead(nodes)
        made = Graph(
            nodes,
            [place[tensor.op.name] for tensor in arguments],
            [ports[tensor.ref()] for tensor in results if tensor.ref() in ports],
        )
        return spell_out(
            made,
            [
                SpelledOut(
                    place[each.stand_in.name],
                    [place[op.name] for op in each.ops if _is_part(op, place, twins)],
                    {ports[one.ref()]: ports[other.ref()] for one, other in each.reads},
                    (axes_of(each.shapes[0]), axes_of(each.shapes[1])),
                )
                for each in self._repeats
                if each.stand_in.graph is graph
            ],
        )

    def _node(self, op: Any, inputs: list[tuple[int, int]], controls: list[int]) -> Node:
        kind = op.type
        outputs = [_size(tensor) for tensor in op.outputs]
        node = Node(op.name, "new", inputs, controls, outputs, cheap=kind in _CHEAP)
        node.work = work_of(op)
        node.fused = kind in _FUSED and not op.name.startswith("gradient_tape/")
        if kind in _VARIABLES:
            node.effect = _VARIABLES[kind]
        elif kind.startswith("ResourceScatter"):
            node.effect = "scatter"
        elif kind in _NOTHING or (not outputs and kind not in _CALLS):
            node.effect = "none"
        elif kind == "TensorListFromTensor" and op.inputs[0].shape.rank:
            self._unstack(node, op.inputs[0])
        elif kind == "ZerosLike" and op.outputs[0].dtype == tf.variant:
            node.effect = "zeros"
        elif kind in _LISTS:
            node.effect = _LISTS[kind]
            if kind == "TensorListSetItem" and op.inputs[1].op.type == "Const":
                node.effect = "replace"
        elif kind in ("AddN", "AddV2") and op.outputs[0].dtype == tf.variant:
            node.effect = "merge"
        elif kind in PASS_ON:
            node.effect = "alias"
        elif kind == "Mul" and any(map(_is_one, op.inputs)):
            # TensorFlow's optimizer leaves it out, as in the swish of activations.
            node.effect, node.cheap = "alias", True
            node.inputs = [e for e, t in zip(inputs, op.inputs, strict=True) if not _is_one(t)]
        elif kind == "Pow" and _is_one(op.inputs[1]):
            node.effect, node.cheap, node.inputs = "alias", True, inputs[:1]  # a square's gradient
        elif kind in REUSE:
            node.effect = "reuse"
        elif kind in _CALLS:
            node.effect, node.body = "call", self._body(op, _CALLS[kind])
            if kind.endswith("If"):
                node.inputs = inputs[1:]
                node.controls = [*controls, inputs[0][0]]
        elif kind in ("While", "StatelessWhile"):
            node.effect, node.body = "loop", self._body(op, "body")
            node.turns, node.ahead = self._count_turns(op), op.get_attr("parallel_iterations")
        elif kind in ("Fill", "ZerosLike"):
            # Of its tensor only the shape counts, which TensorFlow's optimizer knows.
            node.ahead = 1
        elif kind in WITH_SCRATCH:
            node.scratch = scratch_of(op)
            node.copies = 1 if kind == "MaxPoolGrad" else None
        if kind in _OVER_FIRST:
            node.effect, node.over = "reuse", 0
        return node

    @staticmethod
    def _unstack(node: Node, tensor: Any) -> None:
        """A list of a tensor's parts along its first axis, each of which is a copy."""
        length, *rest = tensor.shape.as_list()
        node.effect, node.turns = "unstack", length or 1
        node.outputs = [(axes_of(rest), float(tensor.dtype.size or 8))]

    def _body(self, op: Any, attribute: str) -> Graph:
        name = op.get_attr(attribute).name
        inputs = op.inputs[1:] if op.type.endswith("If") else op.inputs
        shapes = [tensor.shape for tensor in inputs]
        key = (name, str(shapes))
        if key not in self._bodies:
            definition = op.graph._get_function(name) or self._root._get_function(name)
            inner = getattr(definition, "graph", None)
            if inner is None:
                with op.graph.as_default():  # which knows the functions that it calls
                    inner = _imported(getattr(definition, "cached_definition", definition), shapes)
            self._bodies[key] = self.graph(inner, list(inner.inputs))
        return self._bodies[key]

    def _count_turns(self, op: Any) -> int:
        """How often a loop turns: its limit, or as often as the loop that it is the gradient of."""
        for tensor in op.inputs[:4]:
            source = tensor.op
            while source.type == "Identity":
                source = source.inputs[0].op
            if source.name in self._turns:
                self._turns[op.name] = self._turns[source.name]
                return self._turns[op.name]
        turns = 1
        for tensor in op.inputs[1:3]:
            while tensor.op.type in ("Max", "Min", "Identity"):
                tensor = tensor.op.inputs[0]
            value = tf.get_static_value(tensor)
            if value is not None and value.ndim == 0 and value > turns:
                turns = int(value)
        for tensor in op.inputs:
            # Without a limit that is known: as many turns as there are entries to go through.
            if turns == 1 and tensor.op.type == "TensorListFromTensor":
                turns = tensor.op.inputs[0].shape[0] or 1
        self._turns[op.name] = turns
        return turns


def _is_moved_back(op: Any) -> bool:
    """Whether an op is found behind others in what TensorFlow's optimizer makes of a graph.

    The comparison in the look-up of an embedding is, in all graphs without loops that were looked
    at; why is not known. It decides whether the targets are there when the outputs are.
    """
    return op.type == "Less" and {tensor.op.type for tensor in op.inputs} == {
        "Placeholder",
        "Const",
    }


def _imported(definition: Any, shapes: Sequence[Any]) -> Any:
    """A function as a graph, with its functions; of open shapes where those given do not go."""
    make = functools.partial(
        function_def_to_graph.function_def_to_graph, definition, include_library_functions=True
    )
    try:
        return make(input_shapes=shapes)
    except ValueError:  # what grows from turn to turn, as of a list that begins with nothing
        return make()


def _twins(ops: Sequence[Any], updates: Mapping[str, int]) -> dict[str, Any]:
    """The ops that do what another has done already, each with that one.

    TensorFlow's optimizer leaves one of them. Constants, single numbers and lists are left as they
    are.

    Args:
        ops: The ops of a graph.
        updates: Of ops that are part of an update that stands for others, which one: the others
            have ops of their own, so nothing outside is a twin of its.
    """
    found: dict[str, Any] = {}
    first: dict[tuple[Any, ...], Any] = {}
    same: dict[str, str] = {}  # the names of ops that do the same, constants included
    for op in ops:
        number = op.type == "Const" and (op.outputs[0].shape.num_elements() or 0) <= _FEW
        if not (op.inputs or number) or op.control_inputs or op.op_def.is_stateful:
            continue
        inputs = [(same.get(x.op.name, x.op.name), x.value_index) for x in op.inputs]
        attributes = op.node_def.attr
        what = [(k, attributes[k].SerializeToString()) for k in sorted(attributes)]
        key = (updates.get(op.name) if op.inputs else None, op.type, *inputs, *what)
        twin = first.setdefault(key, op)
        if twin is op:
            continue
        same[op.name] = twin.name
        if op.type != "Const" and any(x.shape.rank != 0 for x in op.outputs):
            found[op.name] = twin
    return found


def _put_kernels_last(ops: list[Any]) -> None:
    """Put the gradients of a transposed convolution into the order of all others.

    TensorFlow makes that of the kernel first, here alone; its optimizer leaves it behind that of
    the inputs, as everywhere.
    """
    for at, (op, after) in enumerate(itertools.pairwise(ops)):
        if (op.type, after.type) in _TRANSPOSED and op.inputs[0] is after.inputs[0]:
            ops[at : at + 2] = [after, op]


def _run_ahead(nodes: list[Node]) -> None:
    """Add what loops make for turns to come.

    A loop's turns begin before all is there that the first one reads: those of a gradient's when
    the loop that it is the gradient of has ended.
    """
    for node in list(nodes):
        if node.body is None or node.effect != "loop":
            continue
        turns = min(node.turns, node.ahead) - 1
        sources = {source for source, _ in node.inputs}
        waits = [source for source in sources if nodes[source].effect == "loop"] or list(sources)
        for each in node.body.nodes:
            if each.ahead and turns > 0 and each.effect != "loop":
                node.inputs.append((len(nodes), 0))
                name = f"{node.name}/{each.name}"
                nodes.append(Node(name, "unstack", [], sorted(waits), each.outputs, turns=turns))


def _ends(graph: Any) -> list[Any]:
    """The ops that a graph has for its results and effects, and what it is given."""
    ends = [tensor.op for tensor in graph.outputs]
    ends += list(getattr(graph, "control_outputs", None) or [])
    ends += [tensor.op for tensor in graph.inputs]
    return ends + [op for op in graph.get_operations() if "Assign" in op.type]


def _needed(graph: Any, ends: Sequence[Any]) -> list[Any]:
    """The ops that others depend on, with these, in the order of their making."""
    needed: set[str] = set()
    waiting = list(ends)
    while waiting:
        op = waiting.pop()
        if op.name in needed:
            continue
        needed.add(op.name)
        waiting.extend(tensor.op for tensor in op.inputs)
        waiting.extend(op.control_inputs)
    return [op for op in graph.get_operations() if op.name in needed]


def _known(ops: Sequence[Any]) -> set[str]:
    """The ops that TensorFlow's optimizer computes beforehand: what constants alone decide."""
    known: set[str] = set()
    for op in ops:
        if op.type == "Const" or (
            op.type in _COMPUTED and all(tensor.op.name in known for tensor in op.inputs)
        ):
            known.add(op.name)
    return known


def _unread(ops: Sequence[Any], results: Sequence[Any]) -> set[str]:
    """The reads of variables that others only wait for: TensorFlow's optimizer takes them out."""
    used = {tensor.ref() for op in ops for tensor in op.inputs}
    used |= {tensor.ref() for tensor in results}
    return {
        op.name for op in ops if op.type == "ReadVariableOp" and op.outputs[0].ref() not in used
    }


def _is_part(op: Any, place: Mapping[str, int], twins: Mapping[str, Any]) -> bool:
    """Whether an op of an update is repeated with it: all but what it is given, and twins."""
    return op.name in place and op.type != "Placeholder" and op.name not in twins


def _is_one(tensor: Any) -> bool:
    """Whether a tensor is the number one."""
    return _number(tensor) == 1


def _number(tensor: Any) -> float | None:
    """The number that a tensor is, if it is a constant, or a difference of two."""
    if tensor.shape.rank != 0:
        return None
    if tensor.op.type == "Sub":
        one, other = map(_number, tensor.op.inputs)
        return None if one is None or other is None else one - other
    if tensor.op.type != "Const":
        return None
    counts = tensor.dtype.is_floating or tensor.dtype.is_integer
    return float(tf.get_static_value(tensor)) if counts else None


def _size(tensor: Any) -> Size | None:
    dtype, shape = tensor.dtype, tensor.shape
    if dtype in (tf.resource, tf.variant) or shape.rank is None:
        return None
    return axes_of(shape.as_list()), float(dtype.size or 8)
