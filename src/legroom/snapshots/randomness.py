"""The random numbers of Python and NumPy: where their generators are, taken and put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from legroom.snapshots.values import decode, encode

__all__ = ["Randomness", "randomness", "set_randomness"]

# The states of Python's and of NumPy's own generator.
Randomness = dict[str, Any]


def randomness(arrays: list[Any]) -> Randomness:
    """Where the generators are."""
    return {
        "python": encode(random.getstate(), arrays),
        "numpy": encode(np.random.get_state(), arrays),
    }


def set_randomness(taken: Randomness, arrays: list[Any]) -> None:
    """Put the generators back; those that are named."""
    if "python" in taken:
        random.setstate(decode(taken["python"], arrays))
    if "numpy" in taken:
        np.random.set_state(decode(taken["numpy"], arrays))
