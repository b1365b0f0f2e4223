"""What numbers alone do not show when a step is compared with its slices.

A floor under the mean of a batch is a mean as long as the mean is above it: slices agree with the
whole batch today, and not tomorrow. And a term of the loss that has no weight yet agrees with
anything. So a run notes the decisions that its gradients depend on; and where variables hold a zero
that may be a weight, the step is run again with something else in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import gen_resource_variable_ops

from legroom.backends import patches
from legroom.backends.keras.slices.runs import Decision, Run
from legroom.backends.tensorflow.effects.variables import Snapshot

__all__ = ["Latent", "asleep", "awake", "noting"]

# Kernels that choose between two, and those of their inputs that they choose by.
_CHOICES = {
    "Greater": (0, 1), "GreaterEqual": (0, 1), "Less": (0, 1), "LessEqual": (0, 1),
    "LeakyReluGrad": (1,), "Relu6Grad": (1,), "ReluGrad": (1,), "Sign": (0,),
}  # fmt: skip
_COMPARES = {"Greater", "GreaterEqual", "Less", "LessEqual"}
# More numbers than this are a sample's, or a weight's.
_LARGEST = 1 << 14
# A count of steps that no warm-up lasts for.
_LATER = 10**6


class Latent:
    """What a run noted.

    Attributes:
        decisions: What its gradients were decided by, in order.
    """

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self._reads: dict[int, Any] = {}
        self._compared: dict[int, tuple[Any, Sequence[Any]]] = {}
        self._backwards = False

    def has_read(self, variable: Any) -> bool:
        """Whether Python has read a variable so far."""
        return id(variable.handle) in self._reads

    def note(
        self,
        kind: str | bytes,
        inputs: Sequence[Any],
        attributes: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        """An op has run; the arguments are those of TensorFlow's op callbacks."""
        if graph is not None:
            return
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if kind == "ReadVariableOp":
            self._reads[id(inputs[0])] = inputs[0]
        elif kind in _CHOICES:
            by = [inputs[i] for i in _CHOICES[kind]]
            if self._backwards:
                self._decide(kind, by)
            elif kind in _COMPARES:
                self._compared[id(outputs[0])] = outputs[0], by
        elif kind == "SelectV2" and self._backwards and id(inputs[0]) in self._compared:
            self._decide(kind, self._compared[id(inputs[0])][1])

    def _decide(self, kind: str, by: Sequence[Any]) -> None:
        shape = tuple(tf.broadcast_static_shape(by[0].shape, by[-1].shape))
        small = by[0].shape.num_elements() <= _LARGEST
        self.decisions.append(Decision(kind, shape, [x.numpy() for x in by] if small else []))

    def going_back(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients are taken in here: what is decided now, they depend on."""

        def gradient(*args: Any, **kwargs: Any) -> Any:
            self._backwards = True
            try:
                return original(*args, **kwargs)
            finally:
                self._backwards = False

        return gradient


@contextlib.contextmanager
def noting() -> Iterator[Latent]:
    """Note what runs inside, in this thread and eagerly."""
    latent = Latent()
    op_callbacks.add_op_callback(latent.note)
    try:
        with patches.replaced("tensorflow:GradientTape", "gradient", latent.going_back):
            yield latent
    finally:
        op_callbacks.remove_op_callback(latent.note)


def asleep(variables: Iterable[Any], run: Run) -> list[tuple[Any, Any]]:
    """The variables that may hold another number later in a training, each with such a number.

    Args:
        variables: What the step may read.
        run: A run of the step.
    """
    later = [(count, tf.constant(_LATER, count.dtype)) for count in run.counts_read]
    known = run.written.keys() | run.trained
    for variable in variables:
        number = variable.shape.rank == 0 and variable.dtype.is_floating
        if number and id(variable) not in known and not variable.numpy():
            later.append((variable, tf.constant(1, variable.dtype)))
    return later


@contextlib.contextmanager
def awake(numbers: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Have variables hold other numbers inside.

    Args:
        numbers: The variables, each with its other number.
    """
    before = Snapshot(variable.handle for variable, _ in numbers)
    try:
        for variable, number in numbers:
            gen_resource_variable_ops.assign_variable_op(variable.handle, number)
        yield
    finally:
        before.restore()
