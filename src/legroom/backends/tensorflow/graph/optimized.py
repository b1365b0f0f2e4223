"""A traced step as TensorFlow's optimizer leaves it: that is the graph which is run.

Grappler removes what is known beforehand and what is there twice, makes one op of several, and
decides the order of the ops, and with it what is in memory at the same time. The same graph gets
the same order each time, and one that differs a little another one. So Grappler is asked about the
very graph that it will get: with the batch size left open, and nested as Keras nests a step. Then
the ops get shapes for a batch of `TRACED_SIZE`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
from legroom.backends.tensorflow.graph.stepgraph import Held, StepGraph

__all__ = ["OptimizedStep", "optimized_step"]

# Only for ops that are on a device are there kernels to choose from.
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class OptimizedStep:
    """A step's graph as it is run.

    Attributes:
        graph: The graph; its ops are in the order that the optimizer gave them.
        results: The ops that it returns the outputs of.
        held: Its arguments that stay from step to step, by the names of their ops here.
        batch: The ops that the batch comes from.
        functions: The functions that it calls, by name.
    """

    graph: Any
    results: Sequence[str]
    held: dict[str, Held]
    batch: frozenset[str]
    functions: dict[str, Any]


def optimized_step(step: StepGraph) -> OptimizedStep:
    """Have a step optimized: nested where its batch size is open, else as it is."""
    graph = _nested(step) if step.samples is None else step.graph
    outer = {id(held): inner.op.name for held, inner in graph.captures}
    known = {item.name: item for item in step.held if item.name}
    held = {
        outer[id(value)]: known[inner.op.name]
        for value, inner in step.graph.captures
        if inner.op.name in known and id(value) in outer
    }
    described = _optimized(graph)
    parts = {name: shape for name, shape, _ in step.inputs}
    batch = set()
    for node in described.node:
        node.device = ""
        node.attr.pop("_output_shapes", None)
        if node.op == "IteratorGetNext":
            batch.add(node.name)
            _give_shapes(node, parts.values())
        elif node.op == "Placeholder" and node.name in parts:
            batch.add(node.name)
            node.attr["shape"].shape.CopyFrom(_opened(parts[node.name]).as_proto())
        elif node.op == "Placeholder" and node.name in held:
            _make_handle(node, held[node.name])
    made = tf.Graph()
    with made.as_default():
        tf.graph_util.import_graph_def(described, name="")
    results = [tensor.op.name for tensor in graph.outputs]
    functions = {each.signature.name: each for each in described.library.function}
    return OptimizedStep(made, results, held, frozenset(batch), functions)


def _nested(step: StepGraph) -> Any:
    """The graph of the function that Keras runs: it fetches a batch, and calls the step."""

    def outer(iterator: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        step.function.add_to_graph(graph)
        given = dict(zip(names, iterator.get_next(), strict=True))
        given |= {inner.op.name: graph.capture(value) for value, inner in step.graph.captures}
        returned = tf.raw_ops.StatefulPartitionedCall(
            args=[given[tensor.op.name] for tensor in step.graph.inputs],
            Tout=[tensor.dtype for tensor in step.graph.outputs],
            f=step.function.name,
        )
        return tf.experimental.Optional.from_value(tuple(returned))

    names = [name for name, _, _ in step.inputs]
    specs = tuple(tf.TensorSpec(shape, dtype) for _, shape, dtype in step.inputs)
    source = tf.data.IteratorSpec(specs)
    return tf.function(outer, autograph=False).get_concrete_function(source).graph


def _optimized(graph: Any) -> Any:
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def())
    for node in meta.graph_def.node:
        node.device = _DEVICE
    functions = meta.graph_def.library.function
    for node in itertools.chain(meta.graph_def.node, *(each.node_def for each in functions)):
        # A branch stays an op with a body, which can be walked.
        node.attr.pop("_lower_using_switch_merge", None)
    ends = [tensor.op.name for tensor in graph.outputs]
    ends += [op.name for op in graph.control_outputs]
    meta.collection_def["train_op"].node_list.value.extend(dict.fromkeys(ends))
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # also where there are few
    return tf_optimizer.OptimizeGraph(config, meta, verbose=False, cluster=_machine())


def _machine() -> Any:
    """A machine with a CPU, as the optimizer knows it: none that a session is begun on."""
    cpu = device_properties_pb2.NamedDevice(name=_DEVICE)
    cpu.properties.type = "CPU"
    cpu.properties.num_cores = os.cpu_count() or 1
    cpu.properties.frequency = 2000  # MHz; costs are compared, not added up
    return cluster.Cluster(devices=[cpu])


def _opened(shape: Sequence[int | None]) -> tf.TensorShape:
    return tf.TensorShape([TRACED_SIZE if length is None else length for length in shape])


def _give_shapes(node: Any, shapes: Any) -> None:
    known = node.attr["output_shapes"].list
    del known.shape[:]
    known.shape.extend(_opened(shape).as_proto() for shape in shapes)


def _make_handle(node: Any, item: Held) -> None:
    """Have a placeholder tell what it is the handle of."""
    if node.attr["dtype"].type == tf.resource.as_datatype_enum and item.dtype != "resource":
        node.op = "VarHandleOp"
        node.attr.clear()
        node.attr["dtype"].type = tf.as_dtype(item.dtype).as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(item.shape).as_proto())
    elif item.dtype != "resource":
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(item.shape).as_proto())
