"""All that a training on JAX changes, read and written.

While a model trains, Keras has taken the values from its variables and hands them from step to
step: they are put back before anything is read. A loop by hand says itself what it changes (see
`trees`), and needs no Keras.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from legroom.backends.jax.state.trees import is_replaced, put, take
from legroom.backends.keras.state import host_copies

__all__ = ["HostCopies", "is_replaced", "parts_of", "put", "random_ops_in", "seeds",
           "set_seeds", "state_bytes", "take", "training_variables", "write_variables"]  # fmt: skip


def training_variables(model: Any, graphs: Iterable[Any] = ()) -> list[tuple[str, Any]]:
    """The variables of a training in an order that another process finds too."""
    from legroom.backends.keras.state.training_variables import training_variables as found_through

    model.jax_state_sync()
    return [(group, v) for group, v in found_through(model, _itself) if v._value is not None]


def _itself(variable: Any) -> Any:
    return variable


def state_bytes(variables: Iterable[tuple[str, Any]]) -> int:
    """What a copy of the variables takes."""
    return sum(v._value.nbytes for _, v in variables if v._value is not None)


def _value(variable: Any) -> Any:
    return np.asarray(variable._value)


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
    for variable, value in host_copies.checked_places(list(variables), _dtype, table, arrays):
        # A copy: on a CPU JAX may take the array's own memory, which is used again.
        variable._value = jax.device_put(np.array(value), variable._value.sharding)


def _dtype(variable: Any) -> str:
    return np.dtype(variable._value.dtype).name


def seeds(arrays: list[Any]) -> dict[str, Any]:
    """Where Keras's own generator is: JAX itself has none."""
    variable = _keras_seed()
    if variable is None or variable._value is None:
        return {}
    arrays.append(_value(variable))
    return {"keras": len(arrays) - 1}


def set_seeds(taken: dict[str, Any], arrays: list[Any]) -> None:
    """Put the random numbers back where they were."""
    variable = _keras_seed()
    if "keras" in taken and variable is not None:
        variable.assign(np.array(arrays[taken["keras"]]))


def _keras_seed() -> Any:
    """The state of Keras's own generator, where Keras is used."""
    if not hasattr(sys.modules.get("keras"), "Model"):
        return None
    from legroom.backends.keras.state.training_variables import global_seed_variable

    return global_seed_variable()


def parts_of(model: Any) -> dict[str, Any]:
    """What a model holds that has state of its own beside variables: on JAX nothing has."""
    return {}


def random_ops_in(graph: Any) -> list[str]:
    """The ops of a graph whose random numbers can't be put back: there are none."""
    return []
