"""Trainings on several devices: how arrays lie on them.

Keras lays out a model's variables and each batch by a `keras.distribution`. What a program makes of
them is to lie as they did, and a slice has a part on every device that its batch has one on.
"""

from __future__ import annotations

from typing import Any

import jax

from legroom.backends.jax.step.state import State

__all__ = ["laid_out", "layouts_of", "like_batch", "parts"]


def layouts_of(state: State) -> State | None:
    """How the arrays of a state lie; None where all are on one device."""
    if all(len(x.devices()) == 1 for x in state.trainable_variables):
        return None
    return State(*([x.sharding for x in arrays] for arrays in state))


def laid_out(state: State, layouts: State | None) -> State:
    """A state that lies like another one; for use in a program. What it lacks stays so."""
    if layouts is None:
        return state
    return State(
        *(
            [
                x if x is None else jax.lax.with_sharding_constraint(x, where)
                for x, where in zip(arrays, wanted, strict=False)
            ]
            for arrays, wanted in zip(state, layouts, strict=True)
        )
    )


def parts(leaf: Any) -> int:
    """In how many parts the samples of an array lie on as many devices."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or not leaf.ndim:
        return 1
    length = leaf.sharding.shard_shape(leaf.shape)[0]
    return int(leaf.shape[0] // length) if length else 1


def like_batch(piece: Any, leaf: Any) -> Any:
    """A piece of an array, laid out over the same devices where it can be cut in as many parts."""
    count = parts(leaf)
    return jax.device_put(piece, leaf.sharding) if count > 1 and not len(piece) % count else piece
