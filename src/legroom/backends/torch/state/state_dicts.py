"""What parts of a plain PyTorch loop are, in plain values: modules, optimizers and their like.

A snapshot holds no pickle. So a `state_dict` is written as nested lists, each with a word before it
that tells what it was; tensors become arrays.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch

from legroom.backends.torch.state.arrays import as_array, as_tensor

__all__ = ["as_plain", "from_plain", "put", "take"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Containers that a state_dict may hold, by the word they are written with.
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}
_DICTS: dict[str, Any] = {
    "dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter,
}  # fmt: skip


def take(part: Any) -> Any:
    """What a part of a training is now; None where PyTorch has no say in it.

    Raises:
        TypeError: If something in it is no plain value.
    """
    if isinstance(part, torch.nn.Module):
        kept = part.state_dict()
        # Beside what is in there: buffers that are not saved, and gradients, which may be
        # collected over several batches.
        beside = {name: x for name, x in part.named_buffers() if name not in kept}
        gradients = {n: p.grad for n, p in part.named_parameters() if p.grad is not None}
        return ["module", as_plain(kept), as_plain(beside), as_plain(gradients)]
    if isinstance(part, torch.Generator):
        return ["generator", as_plain(part.get_state())]
    if isinstance(part, torch.Tensor):
        return ["tensor", as_plain(part)]
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return ["state_dict", as_plain(part.state_dict())]
    return None


@torch.no_grad()
def put(part: Any, kept: Any) -> None:
    """Put back what `take` has taken."""
    kind, *values = kept
    first, *others = (from_plain(value) for value in values)
    if kind == "module":
        _put_module(part, first, *others)
    elif kind == "generator":
        part.set_state(first)
    elif kind == "tensor":
        part.copy_(first)
    else:
        part.load_state_dict(first)
        if isinstance(part, torch.optim.Optimizer):
            _keep_types(part, first["state"])
            if first["state"]:
                part._opt_called = True  # else PyTorch warns of schedulers that step before it


def _put_module(module: Any, kept: Any, beside: Any, gradients: Any) -> None:
    module.load_state_dict(kept)
    buffers = dict(module.named_buffers())
    for name, value in beside.items():
        if name in buffers:
            buffers[name].copy_(value)
    for name, parameter in module.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _keep_types(optimizer: Any, kept: dict[int, dict[str, Any]]) -> None:
    """Have slots be what they were: PyTorch turns them into their weight's type."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, slots in kept.items():
        there = optimizer.state.get(parameters[number], {})
        for name, value in slots.items():
            now = there.get(name)
            if isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                there[name] = value.to(now.device)


def as_plain(value: Any) -> Any:
    """A value in nested lists.

    Raises:
        TypeError: If something in it is no plain value.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.generic):
        return ["is", value]
    if isinstance(value, torch.Tensor):
        return ["tensor", as_array(value)]
    if kind is np.ndarray:
        return ["is", value]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    for word, known in _LISTS.items():
        if kind is known:
            return [word, [as_plain(part) for part in value]]
    for word, known in _DICTS.items():
        if kind is known or (word == "dict" and kind is collections.defaultdict):
            return [word, [[as_plain(key), as_plain(part)] for key, part in value.items()]]
    raise TypeError(f"a {kind.__name__} is no plain value")


def from_plain(written: Any) -> Any:
    """What `as_plain` was given."""
    word, data = written
    if word == "tensor":
        return as_tensor(data)
    if word == "dtype":
        return getattr(torch, data)
    if word == "device":
        return torch.device(data)
    if word in _LISTS:
        return _LISTS[word](from_plain(part) for part in data)
    if word in _DICTS:
        return _DICTS[word]({from_plain(key): from_plain(part) for key, part in data})
    return data
