"""Streams as `tf.data` pipelines that can begin a pass in its middle.

A pass begins with two numbers: what its order is drawn from, which tf.data draws anew for each
iterator, as it does for a shuffle; and the first batch, which is 0 unless it was set for the
iterator that begins next.

Batches are made several at a time, in turns: from thread to thread and from TensorFlow to Python
and back takes as long as to copy half a megabyte.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["batches", "find_stream", "image_batches", "image_size_of", "started_at"]

_MARK = "_legroom_stream"
_ONE_TO_ONE = ("_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset")
# Ops that do something else each time they run.
_MEMORY = ("Random", "PyFunc", "Assign")
# Batches of paths of images that are made at a time.
_PATHS = 16


@dataclasses.dataclass
class _Stream:
    """What is known of a stream, at the last of its own stages."""

    first: Any  # a variable
    batches: int


def batches(
    read: Callable[[int, int], list[Any]],
    leaves: Sequence[Any],
    structure: Any,
    samples: int,
    batch_size: int,
    seed: int,
    turn: int,
) -> Any:
    """A pipeline of batches that a Python function makes.

    Args:
        read: Makes a batch, by what the pass's order is drawn from and the batch's number.
        leaves: The parts of a sample, with their dtype and shape.
        structure: How they hang together.
        samples: How many there are.
        batch_size: Samples in a batch.
        seed: What the orders are drawn from.
        turn: Batches that are made at a time; one more may wait.
    """
    rows = None if samples % batch_size else batch_size
    turns, known = _turns(samples, batch_size, seed, turn)
    types = [_type(leaf) for leaf in leaves]

    def make(order: int, first: int) -> list[Any]:
        made = [read(order, number) for number in _numbers(first, turn, known)]
        # There have to be as many in the last turn, which ends before these.
        made += made[-1:] * (turn - len(made))
        return [leaf for batch in made for leaf in batch]

    def one_turn(order: Any, first: Any) -> Any:
        made = tf.numpy_function(make, [order, first], types * turn)
        for tensor, leaf in zip(made, [*leaves] * turn, strict=True):
            tensor.set_shape((rows, *leaf.shape))
        parts = [made[start : start + len(types)] for start in range(0, len(made), len(types))]
        batches = [tf.nest.map_structure(part.__getitem__, structure) for part in parts]
        return first, tuple(batches)

    def one_by_one(first: Any, made: Any) -> Any:
        singles = [tf.data.Dataset.from_tensors(batch) for batch in made]
        joined = functools.reduce(lambda ahead, single: ahead.concatenate(single), singles)
        return joined.take(known.batches - first)

    return _ended(turns.map(one_turn).flat_map(one_by_one), known, turn + 1)


def image_batches(
    read: Callable[[int, int], list[Any]],
    structure: Any,
    samples: int,
    batch_size: int,
    seed: int,
    size: tuple[int, int],
    resized: bool,
    class_names: list[str],
    ram_bytes: int,
) -> Any:
    """A pipeline of batches of images, which are read and decoded by TensorFlow's own threads.

    Args:
        read: Makes a batch of paths, and of the numbers of classes where there are any.
        structure: Of what it makes.
        samples: How many there are.
        batch_size: Samples in a batch.
        seed: What the orders are drawn from.
        size: The height and width of all images.
        resized: Whether they are brought to it; else they must have it.
        class_names: The names of the classes.
        ram_bytes: What buffers may take.
    """
    labelled = structure != 0
    types = [tf.string, tf.int32] if labelled else [tf.string]
    turns, known = _turns(samples, batch_size, seed, _PATHS)

    def make(order: int, first: int) -> list[Any]:
        made = [read(order, number) for number in _numbers(first, _PATHS, known)]
        return [np.concatenate(leaf) for leaf in zip(*made, strict=True)]

    def paths(order: Any, first: Any) -> Any:
        made = tf.numpy_function(make, [order, first], types)
        for tensor in made:
            tensor.set_shape((None,))
        return tuple(made)

    def decode(path: Any, *label: Any) -> Any:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        if resized:
            image = tf.cast(tf.round(tf.image.resize(image, size)), tf.uint8)
        else:
            hint = f"This image is not {size[0]}x{size[1]} like the first one: give image_size=…"
            same = tf.reduce_all(tf.equal(tf.shape(image), (*size, 3)))
            # tf.debugging's own is a branch, and a dozen of ops for every image.
            checked = tf.raw_ops.Assert(condition=same, data=[hint])
            with tf.control_dependencies([checked]):
                image = tf.identity(image)
        image.set_shape((*size, 3))
        return (image, *label) if labelled else image

    singles = turns.map(paths).unbatch()
    decoded = singles.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    options = tf.data.Options()
    options.autotune.ram_budget = ram_bytes
    exact = samples % batch_size == 0
    batched = decoded.batch(batch_size, drop_remainder=exact).with_options(options)
    dataset = _ended(batched, known, tf.data.AUTOTUNE)
    dataset.class_names = class_names
    return dataset


def image_size_of(path: str) -> tuple[int, int]:
    """The height and width of an image."""
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    return int(image.shape[0]), int(image.shape[1])


def find_stream(dataset: Any) -> _Stream | None:
    """The stream that a pipeline begins with, if a batch of it is a batch of the pipeline.

    Not where a stage behind it does something else each time: what comes at a place would depend
    on what came before.
    """
    while not hasattr(dataset, _MARK):
        if type(dataset).__name__ not in _ONE_TO_ONE or _remembers(dataset):
            return None
        dataset = dataset._inputs()[0]
    return getattr(dataset, _MARK)


def started_at(dataset: Any, batch: int) -> Iterator[Any] | None:
    """A new iterator that begins with a batch; None if there is no way but to read up to it."""
    stream = find_stream(dataset) if isinstance(dataset, tf.data.Dataset) else None
    if stream is None:
        return None
    iterator = iter(dataset)
    stream.first.assign(batch)
    # tf.data was told how many there are in a pass, and would complain at the end of this one.
    return itertools.islice(iterator, stream.batches - batch)


def _turns(samples: int, batch_size: int, seed: int, turn: int) -> tuple[Any, _Stream]:
    """What the order of a pass is drawn from, with the number of each turn's first batch."""
    count = -(-samples // batch_size)
    with tf.device("CPU:0"):
        first = tf.Variable(0, dtype=tf.int64, trainable=False, name="legroom_first_batch")

    def begin(order: Any) -> Any:
        now = first.read_value()
        with tf.control_dependencies([now]):
            taken = first.assign(0)
        with tf.control_dependencies([taken]):
            now = tf.identity(now)
        return tf.data.Dataset.range(now, count, turn).map(lambda number: (order, number))

    orders = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).take(1)
    return orders.flat_map(begin), _Stream(first, count)


def _numbers(first: int, turn: int, stream: _Stream) -> range:
    """The batches of a turn."""
    return range(first, min(first + turn, stream.batches))


def _ended(dataset: Any, stream: _Stream, waiting: int) -> Any:
    counted = dataset.apply(tf.data.experimental.assert_cardinality(stream.batches))
    dataset = counted.prefetch(waiting)
    setattr(dataset, _MARK, stream)
    return dataset


def _type(leaf: Any) -> Any:
    return tf.string if leaf.dtype == object else tf.as_dtype(leaf.dtype)


def _remembers(dataset: Any) -> bool:
    """Whether a map's function has an op that does something else each time."""
    if not hasattr(dataset, "_map_func"):
        return False
    with contextlib.suppress(AttributeError):
        definition = dataset._map_func.function.graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        return any(
            part in node.op and not node.op.startswith("Stateless")
            for node in nodes
            for part in _MEMORY
        )
    return True
