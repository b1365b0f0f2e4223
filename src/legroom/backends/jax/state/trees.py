"""What a loop by hand on JAX keeps: trees of arrays, and objects of flax.nnx.

Arrays of JAX can't be written to, so a step returns new ones, and what is put back is new, too.
Objects of flax.nnx hold arrays, and are given others.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from legroom.core.errors import SnapshotError

__all__ = ["is_replaced", "put", "take"]


def is_replaced(part: Any) -> bool:
    """Whether a loop puts something new in the place of this, and does not write to it."""
    if _nnx_of(part) is not None:
        return False
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(part))


def take(part: Any) -> Any:
    """What a part of a training is now; None if it is no tree of JAX's.

    The entries of dicts and lists are taken one by one, and put into them again.
    """
    nnx = _nnx_of(part)
    if nnx is not None:
        return {"leaves": [_taken(leaf) for leaf in jax.tree.leaves(nnx.state(part))]}
    if isinstance(part, (dict, list)) or not is_replaced(part):
        return None
    return {"leaves": [_taken(leaf) for leaf in jax.tree.leaves(part)]}


def put(part: Any, kept: Any) -> Any:
    """Put back what `take` has taken: a new tree, or None for an object that was given its arrays.

    Raises:
        SnapshotError: If these are not the arrays of the training that was saved.
    """
    nnx = _nnx_of(part)
    held = part if nnx is None else nnx.state(part)
    old, tree = jax.tree.flatten(held)
    if len(old) != len(kept["leaves"]):
        raise SnapshotError(
            f"The snapshot has {len(kept['leaves'])} arrays where the script has {len(old)}: the "
            "model or the optimizer was changed. Leave --resume out to start from the beginning."
        )
    made = jax.tree.unflatten(tree, map(_put, old, kept["leaves"]))
    if nnx is None:
        return made
    nnx.update(part, made)
    return None


def _nnx_of(part: Any) -> Any:
    """flax.nnx, where it is there and this is an object of it."""
    nnx = sys.modules.get("flax.nnx")
    return nnx if nnx is not None and isinstance(part, nnx.Pytree) else None


def _taken(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"key": np.array(jax.random.key_data(leaf)), "kind": str(jax.random.key_impl(leaf))}
    return np.array(leaf)


def _put(old: Any, kept: Any) -> Any:
    if not isinstance(old, jax.Array):
        return kept
    if isinstance(kept, dict):
        return jax.random.wrap_key_data(jax.numpy.asarray(kept["key"]), impl=kept["kind"])
    if (old.shape, str(old.dtype)) != (kept.shape, str(kept.dtype)):
        raise SnapshotError(
            f"The snapshot has an array of shape {kept.shape} where the script has {old.shape}: "
            "the model or the optimizer was changed. Leave --resume out to start from the "
            "beginning."
        )
    # A copy: on a CPU JAX may take the array's own memory, which is used again.
    return jax.device_put(np.array(kept), old.sharding if len(old.devices()) > 1 else None)
