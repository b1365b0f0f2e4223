"""Reads a real `tf.data` pipeline: its stages, from the source on, and what each one holds."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any

import tensorflow as tf

from legroom.backends.keras.input.sequences import is_sequence, read_sequence
from legroom.core.stages import Stage

__all__ = ["is_dataset", "is_sequence", "read_pipeline", "read_sequence"]

_KINDS = (
    ("TensorSlice", "arrays"), ("Tensor", "arrays"), ("Generator", "generator"),
    ("TFRecord", "files"), ("TextLine", "files"), ("FixedLength", "files"),
    ("Interleave", "interleave"),
    ("Shuffle", "shuffle"), ("Cache", "cache"), ("Prefetch", "prefetch"),
    ("PaddedBatch", "batch"), ("ParallelBatch", "batch"), ("MapAndBatch", "batch"),
    ("Unbatch", "unbatch"), ("Rebatch", "batch"), ("Batch", "batch"), ("Map", "map"),
)  # fmt: skip


def is_dataset(value: Any) -> bool:
    """Whether a value is a `tf.data` pipeline."""
    return isinstance(value, tf.data.Dataset)


def read_pipeline(dataset: Any) -> list[Stage]:
    """The stages of a pipeline, the source first."""
    stages: list[Stage] = []
    chain = []
    while dataset is not None:
        chain.append(dataset)
        inputs = dataset._inputs() if hasattr(dataset, "_inputs") else []
        dataset = inputs[0] if inputs else None
    for dataset in reversed(chain):
        stages.append(_stage(dataset))
    return stages


def _stage(dataset: Any) -> Stage:
    kind = _kind(dataset)
    size = _element_bytes(dataset)
    dtypes = tuple(
        leaf.dtype.name for leaf in tf.nest.flatten(dataset.element_spec) if hasattr(leaf, "dtype")
    )
    elements: int | None = 0
    held = 0
    if kind in ("shuffle", "prefetch"):
        elements = _buffer(dataset)
        total = _cardinality(dataset)
        if elements is not None and total is not None:
            elements = min(elements, total)
    elif kind == "cache":
        elements = _cardinality(dataset)
    elif kind == "map":
        elements = _parallel(dataset)
    elif kind == "interleave":
        elements = _interleaved(dataset)
    elif kind == "arrays":
        held = sum(_tensor_bytes(tensor) for tensor in getattr(dataset, "_tensors", ()))
    return Stage(
        kind, size, elements, held, dtypes, random=kind == "map" and _draws(dataset),
        to_file=kind == "cache" and bool(_scalar(getattr(dataset, "_filename", b""))),
    )  # fmt: skip


def _kind(dataset: Any) -> str:
    name = type(dataset).__name__.lstrip("_")
    for part, kind in _KINDS:
        if name.startswith((part, "Parallel" + part)):
            return kind
    return "other"


def _element_bytes(dataset: Any) -> int:
    """What one element weighs: by its type where that says it all, else by looking at one."""
    leaves = tf.nest.flatten(dataset.element_spec)
    if all(
        isinstance(leaf, tf.TensorSpec)
        and leaf.dtype != tf.string
        and leaf.shape.is_fully_defined()
        for leaf in leaves
    ):
        return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)
    with contextlib.suppress(Exception):
        for element in dataset.take(1):
            return sum(_tensor_bytes(leaf) for leaf in tf.nest.flatten(element))
    return 0


def _tensor_bytes(tensor: Any) -> int:
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        return sum(_tensor_bytes(part) for part in tf.nest.flatten(tensor, expand_composites=True))
    if tensor.dtype == tf.string:
        with contextlib.suppress(Exception):
            return int(tf.reduce_sum(tf.strings.length(tensor)))
    if tensor.shape.is_fully_defined():
        return math.prod(tensor.shape) * tensor.dtype.size
    return 0


def _buffer(dataset: Any) -> int | None:
    size = _scalar(getattr(dataset, "_buffer_size", None))
    # tf.data chooses by itself: one or two elements to begin with, more where it helps.
    return None if size is None else 2 if size < 0 else int(size)


def _parallel(dataset: Any) -> int:
    calls = _scalar(getattr(dataset, "_num_parallel_calls", None))
    if calls is None:
        return 0
    return (os.cpu_count() or 1) if calls < 0 else int(calls)


def _interleaved(dataset: Any) -> int | None:
    """What waits of the inputs that are open, and of twice as many that are opened ahead.

    Two blocks of each, and one element that has no place in them yet.
    """
    if not hasattr(dataset, "_num_parallel_calls"):
        return 0  # each element is made when it is asked for
    cycle = _scalar(getattr(dataset, "_cycle_length", None))
    block = _scalar(getattr(dataset, "_block_length", None))
    if cycle is None or block is None or cycle < 0:
        return None
    inputs = _cardinality(dataset._inputs()[0])
    opened = 3 * int(cycle)
    return (2 * int(block) + 1) * (opened if inputs is None else min(opened, inputs))


def _cardinality(dataset: Any) -> int | None:
    count = int(dataset.cardinality())
    return count if count >= 0 else None


def _scalar(value: Any) -> Any:
    if value is None:
        return None
    with contextlib.suppress(Exception):
        return value.numpy() if hasattr(value, "numpy") else value
    return None


def _draws(dataset: Any) -> bool:
    """Whether a map's function, or one that it calls, has an op that draws random numbers."""
    with contextlib.suppress(Exception):
        graph = dataset._map_func.function.graph
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        return any("Random" in node.op for node in nodes)
    return False
