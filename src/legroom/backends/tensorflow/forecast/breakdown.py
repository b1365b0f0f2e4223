"""What holds the memory at a peak: by kind, and by layer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from legroom.backends.tensorflow.forecast.replay import Live
from legroom.messages.ops import layer_of_op, match_layer, role_of_op

__all__ = ["by_kind", "by_layer", "kind_of", "plain_name"]

# Where Keras calls its inner function, TensorFlow puts this before the names of all its ops.
_CALLS = "StatefulPartitionedCall/"


def plain_name(op: str) -> str:
    """An op's name as the traced graph has it."""
    while op.startswith(_CALLS):
        op = op[len(_CALLS) :]
    return op


def by_kind(
    live: Iterable[Live],
    peak: int,
    held: Mapping[str, int],
    gradients: Collection[str],
) -> dict[str, int]:
    """The parts of a peak.

    Args:
        live: What is in memory then.
        peak: The bytes in use, slack and all.
        held: What is held between steps: "weights", "optimizer" and "other" with their bytes.
        gradients: The ops whose outputs are the gradients of weights.
    """
    parts: Counter[str] = Counter()
    for item in live:
        kind = kind_of(item, gradients)
        if kind:
            parts[kind] += item.nbytes
    parts["weights"] = held.get("weights", 0)
    parts["optimizer"] = held.get("optimizer", 0)
    parts["other"] = max(0, peak - sum(parts.values()))
    names = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")
    return {name: int(parts[name]) for name in names}


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
