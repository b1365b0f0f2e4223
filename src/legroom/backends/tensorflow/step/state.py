"""All that a Keras training on TensorFlow changes, read and written.

Weights, optimizer, metrics and seed generators are variables, found through the model; what a
step of the user's own uses beside them (a second optimizer, a `tf.Variable` somewhere) is found
in its graph.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from legroom.backends.keras.models.reading import variable_bytes
from legroom.backends.keras.state import host_copies
from legroom.backends.keras.state.training_variables import global_seed_variable
from legroom.backends.keras.state.training_variables import training_variables as found_through

__all__ = [
    "HostCopies",
    "global_seed",
    "is_replaced",
    "parts_of",
    "put",
    "random_ops_in",
    "seeds",
    "set_seeds",
    "state_bytes",
    "take",
    "training_variables",
    "write_variables",
]

_OURS = "legroom"  # variables of the guard itself begin so
_RANDOM_OPS = frozenset(
    {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal",
     "RandomShuffle", "Multinomial", "RandomGammaGrad", "RandomGamma", "RandomPoissonV2",
     "ParameterizedTruncatedNormal", "SampleDistortedBoundingBoxV2", "RandomCrop"}
)  # fmt: skip


def training_variables(model: Any, graphs: Iterable[Any] = ()) -> list[tuple[str, Any]]:
    """The variables of a training in an order that another process finds too.

    Args:
        model: The model.
        graphs: The graphs of its training step, where they were traced.

    Returns:
        What each belongs to, and the variable.
    """
    used = [("step", (v for v in graph.variables if not v.name.startswith(_OURS)))
            for graph in graphs]  # fmt: skip
    return found_through(model, _handle, (tf.Variable,), used)


def _handle(variable: Any) -> Any:
    try:
        return variable.handle
    except AttributeError:  # not yet made, or no variable of one device
        return None


def parts_of(model: Any) -> dict[str, Any]:
    """What a model holds beside variables: nothing, all state is in them."""
    return {}


def take(part: Any) -> Any:
    """A part of a loop's state: nothing but variables is TensorFlow's own."""
    return None


def put(part: Any, kept: Any) -> None:
    """Put back what `take` has taken."""


def is_replaced(part: Any) -> bool:
    """Whether a loop puts something new in the place of a part: variables are written to."""
    return False


def state_bytes(variables: Iterable[tuple[str, Any]]) -> int:
    """What a copy of the variables takes."""
    return sum(variable_bytes(variable) for _, variable in variables)


def _value(variable: Any) -> Any:
    return np.asarray(tf.convert_to_tensor(variable))  # on a CPU the variable's own memory


HostCopies = functools.partial(host_copies.HostCopies, _value)


def write_variables(
    variables: Iterable[tuple[str, Any]],
    table: list[list[Any]],
    arrays: list[Any],
) -> None:
    """Put values back; nothing is written unless every one of them has its place.

    Raises:
        SnapshotError: If these are not the variables of the training that was saved.
    """
    there = [
        (group, variable)
        for group, variable in variables
        if tf.as_dtype(variable.dtype) != tf.string
    ]
    for variable, value in host_copies.checked_places(there, _dtype, table, arrays):
        variable.assign(value)


def _dtype(variable: Any) -> str:
    return np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype).name


def global_seed() -> int | None:
    """The seed that the script has set for TensorFlow, if it has."""
    return context.global_seed()


def seeds(arrays: list[Any]) -> dict[str, Any]:
    """Where TensorFlow's and Keras's own random numbers are."""
    taken: dict[str, Any] = {}
    generator = getattr(context.context(), "_rng", None)
    if generator is not None:
        version, state, gauss = generator.getstate()
        taken["operations"] = [version, len(arrays), gauss]
        arrays.append(np.array(state, np.uint64))
    for name, variable in _seed_variables():
        taken[name] = len(arrays)
        arrays.append(np.asarray(variable.numpy()))
    return taken


def set_seeds(taken: dict[str, Any], arrays: list[Any]) -> None:
    """Put the random numbers back where they were."""
    generator = getattr(context.context(), "_rng", None)
    if "operations" in taken and generator is not None:
        version, index, gauss = taken["operations"]
        state = tuple(int(word) for word in arrays[index])
        assert isinstance(generator, random.Random)
        generator.setstate((version, state, gauss))
    for name, variable in _seed_variables():
        if name in taken:
            variable.assign(arrays[taken[name]])


def _seed_variables() -> Iterator[tuple[str, Any]]:
    if (state := global_seed_variable()) is not None:
        yield "keras", state
    if stateful_random_ops.global_generator is not None:
        yield "tensorflow", stateful_random_ops.global_generator.state


def random_ops_in(graph: Any) -> list[str]:
    """The ops of a graph whose random numbers can't be put back, by their type."""
    return sorted({op.type for op in graph.get_operations() if op.type in _RANDOM_OPS})
