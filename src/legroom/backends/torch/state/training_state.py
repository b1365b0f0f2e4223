"""All that a training on PyTorch changes, read and written.

Keras's variables are found through the model, and so are tensors of PyTorch's modules in it. A
plain loop says itself what it changes (see `state_dicts`). Nothing here needs Keras before a model
of it is asked about.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.backends.keras.state import host_copies
from legroom.backends.torch.state.arrays import as_array, as_tensor, dtype_name
from legroom.backends.torch.state.state_dicts import put, take

__all__ = ["HostCopies", "is_replaced", "own_tensors", "parts_of", "put", "random_ops_in", "seeds",
           "set_seeds", "state_bytes", "take", "training_variables", "write_variables"]  # fmt: skip


def training_variables(model: Any, graphs: Iterable[Any] = ()) -> list[tuple[str, Any]]:
    """The variables of a training in an order that another process finds too."""
    from legroom.backends.keras.state.training_variables import training_variables as found_through

    return found_through(model, _tensor, (), [("module", own_tensors(model))])


def own_tensors(model: Any) -> list[Any]:
    """Tensors of PyTorch's own in a Keras model: buffers, and parameters set by hand.

    They are looked for layer by layer: a model does not have its layers as modules of PyTorch.
    """
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for tensor in (*layer._parameters.values(), *layer.buffers()):
            if tensor is not None:
                found[id(tensor)] = tensor
    return list(found.values())


def _tensor(variable: Any) -> Any:
    """The tensor behind a variable; None where it was not made yet."""
    return variable if isinstance(variable, torch.Tensor) else variable._value


def parts_of(model: Any) -> dict[str, Any]:
    """What a model holds that has state of its own beside variables, by name.

    Optimizers and schedulers of PyTorch, loss scalers, generators of random numbers.
    """
    from legroom.backends.keras.state.training_variables import members

    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler,
             torch.Generator)  # fmt: skip
    found = {id(thing): thing for thing in members(model) if isinstance(thing, kinds)}
    return {f"{n} {type(thing).__name__}": thing for n, thing in enumerate(found.values())}


def state_bytes(variables: Iterable[tuple[str, Any]]) -> int:
    """What a copy of the variables takes."""
    tensors = [_tensor(variable) for _, variable in variables]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _value(variable: Any) -> Any:
    return as_array(_tensor(variable))


HostCopies = functools.partial(host_copies.HostCopies, _value)


@torch.no_grad()
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
        _tensor(variable).copy_(as_tensor(value))


def _dtype(variable: Any) -> str:
    return dtype_name(_tensor(variable).dtype)


def seeds(arrays: list[Any]) -> dict[str, Any]:
    """Where PyTorch's generators are, of the CPU and of each device, and Keras's own."""
    taken: dict[str, Any] = {}
    for name, state in _states():
        taken[name] = len(arrays)
        arrays.append(as_array(state).copy())
    return taken


def _states() -> Iterator[tuple[str, torch.Tensor]]:
    yield "torch", torch.get_rng_state()
    if torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            yield f"cuda:{number}", torch.cuda.get_rng_state(number)
    if torch.backends.mps.is_available():
        yield "mps", torch.mps.get_rng_state()
    if (state := _keras_seed()) is not None:
        yield "keras", state


@torch.no_grad()
def set_seeds(taken: dict[str, Any], arrays: list[Any]) -> None:
    """Put the random numbers back where they were."""
    for name, index in taken.items():
        state = as_tensor(arrays[index])
        kind, _, number = name.partition(":")
        if kind == "torch":
            torch.set_rng_state(state)
        elif kind == "cuda" and torch.cuda.is_available():
            if int(number) < torch.cuda.device_count():
                torch.cuda.set_rng_state(state, int(number))
        elif kind == "mps" and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state)
        elif kind == "keras" and (own := _keras_seed()) is not None:
            own.copy_(state)


def _keras_seed() -> Any:
    """The state of Keras's own generator, where Keras runs on PyTorch here and has used it."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "backend") or keras.backend.backend() != "torch":
        return None
    from legroom.backends.keras.state.training_variables import global_seed_variable

    variable = global_seed_variable()
    return None if variable is None else _tensor(variable)


def is_replaced(part: Any) -> bool:
    """Whether a loop puts something new in the place of a part: tensors are written to."""
    return False


def random_ops_in(graph: Any) -> list[str]:
    """The ops of a graph whose random numbers can't be put back: PyTorch has none."""
    return []
