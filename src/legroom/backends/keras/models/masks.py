"""The mask that Keras puts on a tensor: on the tensor itself, or beside it where it takes none."""

from __future__ import annotations

from typing import Any

__all__ = ["mask_of", "put_mask"]

try:
    from keras.src.backend.common.masking import get_keras_mask as _get
    from keras.src.backend.common.masking import set_keras_mask as _set
except ImportError:  # an older Keras

    def _get(x: Any) -> Any:
        return getattr(x, "_keras_mask", None)

    def _set(x: Any, mask: Any) -> None:
        x._keras_mask = mask


def mask_of(x: Any) -> Any:
    """The mask on a tensor; None where there is none."""
    return _get(x)


def put_mask(x: Any, mask: Any) -> None:
    """Put a mask on a tensor, where there is one."""
    if mask is not None:
        _set(x, mask)
