"""All that a Keras training on TensorFlow changes, read and written.

Weights, optimizer, metrics and seed generators are variables, found through the model; what a
step of the user's own uses beside them (a second optimizer, a `tf.Variable` somewhere) is found
in its graph.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import Variable  # keras.Variable is a class below it before 3.7
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from legroom.backends.keras.reading import variable_bytes
from legroom.core.errors import SnapshotError

__all__ = [
    "HostCopies",
    "global_seed",
    "random_ops_in",
    "seeds",
    "set_seeds",
    "state_bytes",
    "training_variables",
    "write_variables",
]

_OURS = "legroom"  # variables of the guard itself begin so
_KERAS_SEEDS = "global_seed_generator"
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
    found: dict[int, tuple[str, Any]] = {}

    def add(group: str, variables: Iterable[Any]) -> None:
        for variable in variables:
            handle = _handle(variable)
            if handle is not None and id(handle) not in found:
                found[id(handle)] = (group, variable)

    add("model", model.variables)
    add("metrics", model.metrics_variables)
    for thing in _members(model):
        if isinstance(thing, keras.optimizers.Optimizer):
            add("optimizer", thing.variables)
        elif isinstance(thing, (tf.Variable, Variable)):
            add("attribute", [thing])
        elif isinstance(thing, keras.random.SeedGenerator):
            add("seed", [thing.state])
    for graph in graphs:
        add("step", (v for v in graph.variables if not v.name.startswith(_OURS)))
    return list(found.values())


def _handle(variable: Any) -> Any:
    try:
        return variable.handle
    except AttributeError:  # not yet made, or no variable of one device
        return None


def _members(model: Any) -> Iterator[Any]:
    """The objects that a model holds, directly or in plain containers."""
    if getattr(model, "optimizer", None) is not None:
        yield model.optimizer
    waiting = [(value, 0) for value in vars(model).values()]
    while waiting:
        value, depth = waiting.pop(0)
        yield value
        if depth < 3:
            if isinstance(value, (list, tuple)):
                waiting += [(part, depth + 1) for part in value]
            elif isinstance(value, dict):
                waiting += [(part, depth + 1) for part in value.values()]


def state_bytes(variables: Iterable[tuple[str, Any]]) -> int:
    """What a copy of the variables takes."""
    return sum(variable_bytes(variable) for _, variable in variables)


class HostCopies:
    """Copies of variables' values in main memory, taken again and again.

    The memory is used again: pages that a process has not used before are dear, and 400 MB of them
    took a second where the copy itself takes 0.04.
    """

    def __init__(self) -> None:
        self._copies: list[Any] = []

    @property
    def nbytes(self) -> int:
        """The memory that is held for them."""
        return sum(copy.nbytes for copy in self._copies)

    def read(self, variables: Iterable[tuple[str, Any]], arrays: list[Any]) -> list[list[Any]]:
        """Copy the values, over those that were copied before.

        Returns:
            A table of what they belong to, their names, and where among the arrays they are.
        """
        before, self._copies = self._copies, []
        table = []
        for group, variable in variables:
            value = np.asarray(tf.convert_to_tensor(variable))  # on a CPU the variable's own memory
            if value.dtype.kind in "OSU":
                continue  # text: a vocabulary, which training does not change
            table.append([group, getattr(variable, "path", variable.name), len(arrays)])
            place = len(self._copies)
            copy = before[place] if place < len(before) else None
            if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
                copy = np.empty_like(value)
            np.copyto(copy, value)
            self._copies.append(copy)
            arrays.append(copy)
        return table


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
    wanted = [(group, arrays[index].shape, arrays[index].dtype.name) for group, _, index in table]
    have = [
        (group, tuple(variable.shape), tf.as_dtype(variable.dtype).as_numpy_dtype)
        for group, variable in there
    ]
    have = [(group, shape, np.dtype(dtype).name) for group, shape, dtype in have]
    if wanted != have:
        raise SnapshotError(_difference(table, there, wanted, have))
    for (_, variable), (_, _, index) in zip(there, table, strict=True):
        variable.assign(arrays[index])


def _difference(table: Any, there: Any, wanted: Any, have: Any) -> str:
    text = (
        f"The snapshot holds {len(wanted)} variables and the training here has {len(have)}: "
        "this is another model, or another optimizer."
    )
    for i, (one, other) in enumerate(zip(wanted, have, strict=False)):
        if one != other:
            name = getattr(there[i][1], "path", there[i][1].name)
            return (
                f"{text} The first difference: {table[i][1]} is {one[2]}{list(one[1])} in the "
                f"snapshot, where {name} is {other[2]}{list(other[1])} here."
            )
    return text


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
    generator = global_state.get_global_attribute(_KERAS_SEEDS)
    if generator is not None:
        yield "keras", generator.state
    if stateful_random_ops.global_generator is not None:
        yield "tensorflow", stateful_random_ops.global_generator.state


def random_ops_in(graph: Any) -> list[str]:
    """The ops of a graph whose random numbers can't be put back, by their type."""
    return sorted({op.type for op in graph.get_operations() if op.type in _RANDOM_OPS})
