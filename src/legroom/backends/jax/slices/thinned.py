"""Large arrays made small, to be compared."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

__all__ = ["MOST", "thinned"]

# Of an array that has more entries, so many sums over it are compared.
MOST = 2**16


def thinned(value: Any) -> Any:
    """An array to be compared: of a large one sums over parts that are spread over all of it.

    Copies of all gradients would need several times the weights' memory.
    """
    if value is None or value.size <= MOST:
        return value
    flat = value.astype(jnp.float32).reshape(-1)
    rows = -(-flat.size // MOST)
    table = jnp.pad(flat, (0, rows * MOST - flat.size)).reshape(rows, MOST)
    signs = 1.0 - 2.0 * (jnp.arange(rows) % 2)
    return (table * signs[:, None].astype(jnp.float32)).sum(axis=0)
