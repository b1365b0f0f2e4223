"""Values of a step that is tried, as arrays to be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["as_array"]

_HALVES = (torch.float16, torch.bfloat16)


def as_array(value: Any) -> Any:
    """What a tensor holds, copied; other things as they are."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_sparse:
            value = value.to_dense()
        if value.dtype in _HALVES:
            value = value.float()
        return value.cpu().numpy().copy()
    if value is None or isinstance(value, (str, bytes)):
        return value
    return np.array(value)
