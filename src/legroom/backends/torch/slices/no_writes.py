"""Weights that a step on trial may not write itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.backends.keras.slices.rules import Refused
from legroom.backends.torch.step import batch

__all__ = ["not_written"]

_BY_HAND = "it updates its weights without an optimizer"


class _NoWrites(TorchDispatchMode):
    """Refuses a step that writes its weights itself, before it does."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()
        self._storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            given = zip(func._schema.arguments, args, strict=False)
            written = [x for how, x in given if how.alias_info and how.alias_info.is_write]
            for leaf in batch.flatten(written):
                if isinstance(leaf, torch.Tensor) and self._is_weight(leaf):
                    raise Refused(_BY_HAND)
        return func(*args, **(kwargs or {}))

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages


@contextlib.contextmanager
def not_written(parameters: Iterable[Any]) -> Iterator[None]:
    """Have weights stay as they are, or refuse."""
    before = [(p, p.data) for p in parameters if p.requires_grad]
    try:
        with _NoWrites({data.untyped_storage()._cdata for _, data in before}):
            yield
    finally:
        moved = [(p, data) for p, data in before if p.data_ptr() != data.data_ptr()]
        for parameter, data in moved:
            parameter.data = data
    if moved:
        raise Refused(_BY_HAND)
