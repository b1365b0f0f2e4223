"""What PyTorch keeps of trainings that are over."""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

from legroom.backends.torch.device.pool import default_device, pool_of
from legroom.backends.torch.device.storages import storages

_MOST_NODES = 300  # of a graph that are looked at
__all__ = ["forget_kernels", "release", "unpin", "weigh"]


def release() -> int:
    """Let go of all that a user would not miss; returns how many graphs were pinned."""
    gc.collect()
    forget_kernels()
    return 0


def unpin() -> int:
    """Let go of traced graphs that nobody can run any more: PyTorch keeps none."""
    return 0


def forget_kernels() -> None:
    """Give back what the allocator keeps for later."""
    pool_of(default_device()).forget_cached()


def weigh(value: Any) -> tuple[str, int] | None:
    """What an object is and weighs; None where it holds no memory by itself."""
    if isinstance(value, torch.Tensor):
        graph = _held_by_graph(value)
        own = sum(storage.nbytes() for storage in storages(value))
        return ("graph", own + graph) if graph > own else ("tensor", own)
    if isinstance(value, torch.nn.Module):
        # A model of Keras keeps its optimizer's variables as well.
        slots = getattr(getattr(value, "optimizer", None), "variables", None) or []
        made = [slot.value for slot in slots if getattr(slot, "_value", None) is not None]
        return "model", _bytes([*value.parameters(), *value.buffers(), *made])
    if isinstance(value, torch.optim.Optimizer):
        kept = [held for slots in value.state.values() for held in slots.values()]
        return "optimizer", _bytes([held for held in kept if isinstance(held, torch.Tensor)])
    return None


def _bytes(tensors: list[Any]) -> int:
    return sum(tensor.nbytes for tensor in {id(each): each for each in tensors}.values())


def _held_by_graph(tensor: Any) -> int:
    """What the graph behind a tensor keeps for its gradients, beside weights."""
    held: dict[int, int] = {}
    weights: set[int] = set()
    seen: set[Any] = set()
    level = [tensor.grad_fn]
    while level and len(seen) < _MOST_NODES:
        node = level.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        level += [inner for inner, _ in node.next_functions]
        if (weight := getattr(node, "variable", None)) is not None:
            weights |= {storage._cdata for storage in storages(weight)}
        kind: Any = type(node)
        for name in _saved_by(kind):
            try:
                saved = getattr(node, name)
            except RuntimeError:
                return 0  # it has gone backward, and let go of everything
            if isinstance(saved, torch.Tensor):
                held |= {storage._cdata: storage.nbytes() for storage in storages(saved)}
    return sum(size for storage, size in held.items() if storage not in weights)


@functools.cache
def _saved_by(kind: Any) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_saved_")]
