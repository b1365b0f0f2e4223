"""Tensors as arrays of NumPy, and back, bit for bit: the small floats too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

__all__ = ["as_array", "as_tensor", "dtype_name"]

# NumPy knows these by ml_dtypes only: they are handed over as integers of their size.
_SMALL = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                 "float8_e8m0fnu")
    if hasattr(torch, name) and hasattr(ml_dtypes, name)
}  # fmt: skip
_INTEGERS = {1: torch.uint8, 2: torch.int16}


def as_array(tensor: torch.Tensor) -> Any:
    """A tensor's values; on a CPU they are its own memory.

    Raises:
        TypeError: If it is no plain one: sparse, quantized, or without values.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(f"a tensor that is no plain array: {tensor.layout} on {tensor.device}")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype in _SMALL:
        kind = _SMALL[tensor.dtype]
        return tensor.view(_INTEGERS[kind.itemsize]).numpy().view(kind)
    return tensor.numpy()


def as_tensor(array: Any) -> torch.Tensor:
    """An array's values as a tensor of their own."""
    array = np.array(array, copy=True, order="C")
    for small, kind in _SMALL.items():
        if array.dtype == kind:
            plain = array.view(np.uint8 if kind.itemsize == 1 else np.int16)
            return torch.from_numpy(plain).view(small)
    return torch.from_numpy(array)


def dtype_name(dtype: torch.dtype) -> str:
    """A type's name as NumPy has it."""
    if dtype in _SMALL:
        return _SMALL[dtype].name
    return str(torch.empty((), dtype=dtype).numpy().dtype.name)
