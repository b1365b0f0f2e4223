"""Whole steps on the batches of an iterator, one after the other, in one function.

Keras runs the steps of an execution (`steps_per_execution`) in one function, which saves the time
that Python takes for each of them. Here they are the guarded step's own: each happens wholly or not
at all. What a failure must not lose is kept outside of the loop: how many steps were taken, and the
batch that was taken from the iterator for the one that was not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from legroom.backends.tensorflow.device.survivable import survivable
from legroom.backends.tensorflow.effects.variables import Snapshot, handle_bytes, read_handle
from legroom.backends.tensorflow.step.traits import own_function

__all__ = ["Ran", "StepLoop"]

# Old values that are kept on the way; with more of them, copying takes longer than Python does.
_MOST_KEPT = 2**20


@dataclasses.dataclass
class Ran:
    """What a loop has done.

    Attributes:
        steps: How many steps it took.
        samples: Their samples, together.
        largest: The samples of the largest batch; 0 where an error ended it.
        outputs: What the last step returned; None where there was none, or an error.
        left: A batch that was taken from the iterator and is still to be trained on, if any.
        error: What ended it, if anything did.
    """

    steps: int
    samples: int = 0
    largest: int = 0
    outputs: Any = None
    left: Any = None
    error: BaseException | None = None


class StepLoop:
    """Runs a traced step on batch after batch.

    Args:
        step: The step as a traced function, which returns tensors.
        spec: The types of a batch, all of them tensors'.
        kept: The variables whose old values are kept while a step runs.
        counters: Those of them that every finished step moves.
    """

    def __init__(
        self, step: Any, spec: Any, kept: Sequence[Any] = (), counters: Sequence[Any] = ()
    ) -> None:
        self._step = step
        self._kept = list({id(handle): handle for handle in [*kept, *counters]}.values())
        self._counters = counters
        self._spec = spec
        self._returned = tf.nest.flatten(step.structured_outputs)
        self._old = [_beside(handle) for handle in self._kept]
        with tf.device("CPU:0"):
            # Steps and their samples; and the batches that were taken.
            self._done = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
            self._taken = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._batch = [
                tf.Variable(tf.zeros([0], leaf.dtype), shape=tf.TensorShape(None), trainable=False)
                for leaf in tree.flatten(spec)
            ]
        inputs = (
            tf.data.IteratorSpec(spec),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.int64),
        )

        @tf.autograph.experimental.do_not_convert
        def loop(arguments: Any) -> tuple[Any, list[Any]]:
            return self._loop(*arguments)

        self._function = own_function(loop, None, inputs)

    @staticmethod
    def can_run(step: Any, spec: Any, kept: Sequence[Any]) -> bool:
        """Whether a step can be run so: it takes and returns tensors, and keeps little."""
        taken, returned = tree.flatten(spec), tf.nest.flatten(step.structured_outputs)
        return (
            all(isinstance(leaf, tf.TensorSpec) for leaf in taken)
            and any(leaf.shape.rank for leaf in taken)
            and all(isinstance(leaf, (tf.Tensor, tf.TensorSpec)) for leaf in returned)
            and not any(leaf.dtype in (tf.resource, tf.variant) for leaf in [*taken, *returned])
            and sum(map(handle_bytes, kept)) <= _MOST_KEPT
        )

    def trace(self) -> None:
        """Trace the loop, which changes nothing."""
        self._function.get_concrete_function()

    def __call__(self, iterator: Any, steps: int, sizes: Collection[int]) -> Ran:
        """Take batches and run steps on them, until the data or something else ends it.

        Args:
            iterator: One of tf.data's.
            steps: How many steps to take, at most.
            sizes: It ends at a batch of another size than these, which is left.
        """
        self._taken.assign(0)
        self._done.assign([0, 0])
        arguments = (iterator, tf.constant(steps, tf.int64), tf.constant([*sizes], tf.int64))
        try:
            with survivable():
                largest, outputs = self._function(arguments)
        except BaseException as error:
            return self._failed(error)
        ran = self._ran()
        ran.largest = int(largest)
        if ran.steps:
            ran.outputs = tf.nest.pack_sequence_as(self._step.structured_outputs, outputs)
        return ran

    def _failed(self, error: BaseException) -> Ran:
        ran = self._ran()
        ran.error = error
        if ran.left is not None:
            old = Snapshot.of(self._kept, [variable.read_value() for variable in self._old])
            if old.moved(self._counters):
                ran.steps, ran.left = ran.steps + 1, None  # its update was made all the same
            else:
                old.restore()
        return ran

    def _ran(self) -> Ran:
        steps, samples = (int(number) for number in self._done.numpy())
        ran = Ran(steps, samples)
        if int(self._taken.numpy()) > steps:
            leaves = [leaf.read_value() for leaf in self._batch]
            ran.left = tree.pack_sequence_as(self._spec, leaves)
            self._forget_batch()
        return ran

    def _loop(self, iterator: Any, steps: Any, sizes: Any) -> tuple[Any, list[Any]]:
        """The function's body; returns the largest batch, and the last step's outputs."""

        def go_on(step: Any, going: Any, *others: Any) -> Any:
            return tf.logical_and(going, step < steps)

        def take(step: Any, going: Any, *others: Any) -> Any:
            batch = iterator.get_next_as_optional()
            return tf.cond(
                batch.has_value(),
                lambda: self._take(batch.get_value(), sizes, step, *others),
                lambda: [step, tf.constant(False), *others],
            )

        zero = tf.constant(0, tf.int64)
        first = [zero, tf.constant(True), zero, *map(_zeros, self._returned)]
        shapes = [*(value.shape for value in first[:3]), *(leaf.shape for leaf in self._returned)]
        _, going, largest, *outputs = tf.while_loop(
            go_on, take, first, shape_invariants=shapes, parallel_iterations=1
        )
        tf.cond(going, self._forget_batch, tf.no_op)  # which is large, maybe
        return largest, list(outputs)

    def _take(self, data: Any, sizes: Any, step: Any, largest: Any, *outputs: Any) -> list[Any]:
        """Keep a batch, and run the step on it if it is of a size that fits."""
        leaves = tree.flatten(data)
        samples = tf.shape(next(x for x in leaves if x.shape.rank), out_type=tf.int64)[0]
        keeping = [
            kept.assign(value, read_value=False)
            for kept, value in zip(self._batch, leaves, strict=True)
        ]
        keeping += [
            old.assign(read_handle(handle), read_value=False)
            for old, handle in zip(self._old, self._kept, strict=True)
        ]
        with tf.control_dependencies(keeping):
            taken = self._taken.assign_add(1, read_value=False)
        with tf.control_dependencies([taken]):
            return tf.cond(
                tf.reduce_any(tf.equal(samples, sizes)),
                lambda: [step + 1, True, tf.maximum(largest, samples), *self._run(data, samples)],
                lambda: [step, False, largest, *outputs],
            )

    def _run(self, data: Any, samples: Any) -> list[Any]:
        """Run the step, and count it when all of it is done."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        outputs = tf.nest.flatten(self._step(data))
        with tf.control_dependencies(graph.get_operations()[before:]):
            counted = self._done.assign_add(tf.stack([1, samples]), read_value=False)
        with tf.control_dependencies([counted]):
            return [tf.identity(output) for output in outputs]

    def _forget_batch(self) -> Any:
        return tf.group(
            *(kept.assign(tf.zeros([0], kept.dtype), read_value=False) for kept in self._batch)
        )


def _beside(handle: Any) -> Any:
    """A variable for the old values of another one."""
    with tf.device(handle.device):
        return tf.Variable(read_handle(handle), trainable=False)


def _zeros(leaf: Any) -> Any:
    """A tensor of a type, as small as can be: none that is returned."""
    sizes = leaf.shape.as_list() if leaf.shape.rank else []
    return tf.zeros([size or 0 for size in sizes], leaf.dtype)
