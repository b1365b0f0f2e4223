"""Running a part of a model again for its gradients, instead of keeping what it computed.

JAX's own checkpointing does it. It wants a function that gives back all that it changes: Keras's
variables have their values in a scope while a model trains, so the part runs in a scope of its own,
and what that scope has in the end is given back. The second run is a copy of the first one's ops,
so it draws the same numbers and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from keras import StatelessScope, tree
from keras.src.backend.common.stateless_scope import get_stateless_scope

from legroom.backends.keras.models.masks import mask_of, put_mask

__all__ = ["run_recomputed"]


def run_recomputed(
    body: Callable[[Sequence[Any]], Any],
    inputs: Sequence[Any],
    layers: Sequence[Any],
    *,
    compiled: bool = False,
) -> Any:
    """Run a body now, and once more when its gradients are asked for.

    Args:
        body: A function of a list of arrays, to a structure of arrays.
        inputs: The arrays. A Keras mask on one of them is passed on with it.
        layers: The layers that the body calls.
        compiled: Of no meaning here: it is the same for the compiler.
    """
    del compiled
    outer = get_stateless_scope()
    if outer is None:  # nobody asks for gradients
        return body(inputs)
    parts = list(dict.fromkeys(part for layer in layers for part in layer._flatten_layers()))
    seen: dict[str, Any] = {}

    def pure(arrays: list[Any], masks: list[Any]) -> Any:
        for x, mask in zip(arrays, masks, strict=True):
            put_mask(x, mask)
        inner = StatelessScope(collect_losses=outer.collect_losses)
        before = dict(outer.state_mapping)
        inner.state_mapping.update(before)
        with inner:
            outputs = body(arrays)
        leaves = tree.flatten(outputs)
        seen["outputs"] = outputs
        seen["owners"] = [[part for part in parts if id(x) in part._loss_ids] for x in inner.losses]
        written = {k: v for k, v in inner.state_mapping.items() if before.get(k) is not v}
        return leaves, [mask_of(x) for x in leaves], written, inner.losses

    leaves, masks, written, losses = jax.checkpoint(pure)(
        list(inputs), [mask_of(x) for x in inputs]
    )
    for x, mask in zip(leaves, masks, strict=True):
        put_mask(x, mask)
    outer.state_mapping.update(written)
    for loss, owners in zip(losses, seen["owners"], strict=True):
        outer.add_loss(loss)
        for part in owners:
            part._loss_ids.add(id(loss))
    return tree.pack_sequence_as(seen["outputs"], leaves)
