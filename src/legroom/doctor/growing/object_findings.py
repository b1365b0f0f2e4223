"""Findings about what a user's own objects keep: which kind, what it costs, what to do. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from legroom.core.findings import Finding
from legroom.core.places import short_place
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding
from legroom.doctor.growing.culprits import ISOLATED, Evidence

__all__ = ["MODELS", "Keeping", "holder_finding"]

# What has the weights of a model.
MODELS = ("model", "History", "callback", "optimizer", "layer")
_CURES = {
    "model": (
        "LR108", "Keep what you need of each (its history, its score, weights in a file), not the "
        f"model; or {ISOLATED}."),
    "History": (
        "LR108", "Keep history.history, which is numbers: a History object holds its model."),
    "callback": ("LR108", "Keep what you need of it: a callback holds its model."),
    "optimizer": ("LR108", "Keep its settings: optimizer.get_config()."),
    "layer": ("LR108", "Keep its weights in a file, or as arrays (layer.get_weights())."),
    "tensor": (
        "LR105", "Keep numbers: float(loss) or tensor.numpy() of what you need. A tensor also "
        "holds device memory."),
    "graph": (
        "LR105", "Keep numbers: loss.item(), or tensor.detach(). A tensor that has not gone "
        "backward holds all that its gradient needs."),
    "variable": ("LR105", "Make it once, before the loop, and assign to it."),
    "gradient tape": (
        "LR105", "Keep the gradients, not the tape: it holds every tensor of its forward pass."),
    "data set": (
        "LR105", "Make it once, before the loop, or let go of it: it holds its arrays and its "
        "cache."),
    "iterator": (
        "LR105", "Let go of it once it is read: it holds its shuffle and prefetch buffers."),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Keeping:
    """What something takes in, each iteration.

    Attributes:
        kind: What it takes in.
        name: What the user calls what keeps it; empty where that was not found.
        made: The line that makes what it takes in, or nothing.
        count: How many, an iteration.
        bytes: How many bytes; 0 where what it takes in does not tell.
        bound: The most entries that it can hold, if it has a limit.
    """

    kind: str
    name: str
    made: str
    count: float
    bytes: float
    bound: int | None = None


def holder_finding(seen: Evidence, kept: Keeping) -> Finding:
    """The finding about something that comes to hold more and more.

    Args:
        seen: The loop.
        kept: What it keeps.
    """
    size = kept.bytes or seen.slope
    text = _text(seen, kept, size)
    fields: dict[str, Any] = {
        "place": kept.made or seen.place, "bytes": round(size), "per": seen.unit,
        "data": {"loop": seen.place, "holder": kept.name, "made_at": kept.made,
                 "count": kept.count, "kind": kept.kind},
    }  # fmt: skip
    if kept.bound is not None:
        text += f" It stops at {kept.bound} entries."
        return finding("LR109", text, severity="note", fix="Nothing, if that fits.", **fields)
    if kept.kind in _CURES:
        id, fix = _CURES[kept.kind]
        return finding(id, text, fix=fix, **fields)
    fix = "If you want it to, nothing; a collections.deque(maxlen=…) would bound it."
    return finding("LR109", text, severity="note", fix=fix, **fields)


def _text(seen: Evidence, kept: Keeping, size: float) -> str:
    name = f"{kept.name[:1].upper()}{kept.name[1:]}"
    each = format_bytes(size / max(kept.count, 1))
    by = f", made at {short_place(kept.made)}" if kept.made else ""
    several = "Histories" if kept.kind == "History" else kept.kind + "s"
    one = f"an {kept.kind}" if kept.kind[0] in "aeiou" else f"a {kept.kind}"
    many = f"{kept.count:.0f} {several}" if kept.count >= 1.5 else one
    if not name:
        return f"Each {seen.unit} leaves {many} of {each}{by}; what holds them was not found."
    if kept.count < 0.5:
        return f"What {name} holds grows by {format_bytes(size)} of {several} each {seen.unit}."
    if name.startswith("`") and kept.bytes:
        return f"What {name} holds grows by {many} of {each} each {seen.unit}."
    if not kept.bytes:
        return (
            f"{name} takes in {many} each {seen.unit}{by}, and keeps them; memory grows by "
            f"{format_bytes(size)} each {seen.unit}, and nothing else was found that holds more."
        )
    return f"{name} takes in {many} of {each} each {seen.unit}{by}, and keeps them."
