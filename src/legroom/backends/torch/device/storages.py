"""The memory behind a tensor."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["storages"]

# The parts that sparse tensors are made of, by how they are laid out.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def storages(tensor: Any) -> list[Any]:
    """The storages of a tensor: one, or one a part; none where it does not tell."""
    try:
        parts = [getattr(tensor, part)() for part in _PARTS.get(tensor.layout, ())] or [tensor]
        return [part.untyped_storage() for part in parts]
    except (NotImplementedError, RuntimeError):  # MKL-DNN's own, and what others wrap
        return []
