"""What holds the memory at a peak: by kind, and by layer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from legroom.backends.tensorflow.forecast.replay import Live
from legroom.core.figures import BREAKDOWN
from legroom.messages.reading.ops import layer_of_op, match_layer, role_of_op

__all__ = ["by_kind", "by_layer", "kind_of", "parts_of", "plain_name"]

# Where Keras calls its inner function, TensorFlow puts this before the names of all its ops.
_CALLS = "StatefulPartitionedCall/"


def plain_name(op: str) -> str:
    """An op's name as the traced graph has it."""
    while op.startswith(_CALLS):
        op = op[len(_CALLS) :]
    return op


def by_kind(live: Iterable[Live], gradients: Collection[str]) -> Counter[str]:
    """What is in memory by what it is for.

    Args:
        live: What is in memory.
        gradients: The ops whose outputs are the gradients of weights.
    """
    kinds: Counter[str] = Counter()
    for item in live:
        kinds[kind_of(item, gradients)] += item.nbytes
    return kinds


def kind_of(item: Live, gradients: Collection[str]) -> str:
    """What a thing in memory is for; empty for what is held, which is counted whole."""
    op = plain_name(item.op)
    if item.phase == "input":
        return "input"
    if item.phase != "step" or "Assign" in op.rpartition("/")[2] or not op:
        return ""
    if item.region == "temp":
        return "workspace"
    if op in gradients:
        return "gradients"
    return "workspace" if role_of_op(op) == "optimizer" else "activations"


def parts_of(total: int, kinds: Mapping[str, int], held: Mapping[str, int]) -> tuple[int, ...]:
    """The bytes in use at a moment by what they are for, in the order of the breakdown.

    Args:
        total: The bytes in use, slack and all.
        kinds: What the step itself has in memory then, by kind.
        held: What is held between steps: "weights" and "optimizer" with their bytes.
    """
    sizes = {**kinds, "weights": held["weights"], "optimizer": held["optimizer"]}
    sizes["other"] = max(0, total - sum(sizes.get(name, 0) for name in BREAKDOWN[:-1]))
    return tuple(sizes.get(name, 0) for name in BREAKDOWN)


def by_layer(
    live: Iterable[Live], layers: Collection[str], weights: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """The bytes of each layer: its weights, and what its ops hold at the peak.

    Args:
        live: What is in memory then.
        layers: The names of the model's layers.
        weights: The bytes of variables by Keras's path of them.
    """
    totals: Counter[str] = Counter()
    for path, nbytes in weights.items():
        totals[match_layer(path, layers) or path.split("/")[0]] += nbytes
    for item in live:
        if item.phase == "step" and item.op:
            op = plain_name(item.op)
            layer = match_layer(op, layers) or layer_of_op(op)
            if layer is not None:
                totals[layer] += item.nbytes
    return tuple((name, int(size)) for name, size in totals.most_common() if size)
