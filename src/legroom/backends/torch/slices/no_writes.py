"""Weights that a step on trial may not write itself, but for those that it writes at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.backends.keras.slices.rules import Refused
from legroom.backends.torch.device.storages import storages
from legroom.backends.torch.step import batch

__all__ = ["BY_HAND", "not_written"]

BY_HAND = "it updates its weights without an optimizer"


class _Writes(TorchDispatchMode):
    """Sees who writes weights, and keeps what was there before.

    Args:
        weights: The weights.
        allow: Called before one is written; refuses the step where it may not be.
    """

    def __init__(self, weights: list[Any], allow: Callable[[], None]) -> None:
        super().__init__()
        self._weights = {x.untyped_storage()._cdata: x for x in weights}
        self._allow = allow
        self._before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            given = zip(func._schema.arguments, args, strict=False)
            written = [x for how, x in given if how.alias_info and how.alias_info.is_write]
            for leaf in batch.flatten(written):
                if isinstance(leaf, torch.Tensor):
                    for storage in storages(leaf):
                        self._look(storage._cdata)
        return func(*args, **(kwargs or {}))

    def _look(self, storage: int) -> None:
        weight = self._weights.get(storage)
        if weight is not None:
            self._allow()
            if storage not in self._before:
                self._before[storage] = weight, weight.to("cpu", copy=True)

    def put_back(self) -> None:
        """Write what was there before."""
        for weight, before in self._before.values():
            weight.copy_(before)


@contextlib.contextmanager
def not_written(weights: Iterable[Any], allow: Callable[[], None]) -> Iterator[None]:
    """Have weights be as before in the end.

    Args:
        weights: The weights, those that are not trained among them.
        allow: Called before one is written; refuses the step where it may not be.
    """
    before = [(weight, weight.data) for weight in weights]
    writes = _Writes([data for _, data in before], allow)
    try:
        with writes:
            yield
    finally:
        moved = [(p, data) for p, data in before if p.data_ptr() != data.data_ptr()]
        for parameter, data in moved:
            parameter.data = data
        writes.put_back()
    if moved:
        raise Refused(BY_HAND)
