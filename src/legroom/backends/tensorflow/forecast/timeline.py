"""From the ops of a step to the bytes that are live at each of them. Pure.

The walk takes the ops in the order in which they were traced, gives each output its bytes when its
op runs, and takes them back after the last op that reads it. That is not the order in which
TensorFlow runs them, and its kernels' scratch is not seen, so the peak is an estimate; it is there
to choose the first plan by, before anything was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from legroom.core.traces import TracedOp

__all__ = ["Peak", "find_peak"]


@dataclasses.dataclass(frozen=True)
class Peak:
    """The moment of a step at which most memory is live.

    Attributes:
        live_bytes: The bytes live at that moment.
        op: The op that runs then.
        tensors: What is live then: op name and bytes, the largest first.
    """

    live_bytes: int
    op: str
    tensors: tuple[tuple[str, int], ...]


def find_peak(ops: Sequence[TracedOp], kept: Sequence[str] = ()) -> Peak:
    """Walk a step and find its peak.

    Args:
        ops: The step, in order.
        kept: Tensors that outlive the step: what it returns.
    """
    buffer_of: dict[str, str] = {}  # which tensor's memory each tensor uses
    for op in ops:
        for k, (name, _) in enumerate(op.outputs):
            source = op.inputs[0] if op.inputs else None
            shared = op.passes_on and k == 0 and source in buffer_of
            buffer_of[name] = buffer_of[source] if shared and source is not None else name
    last_use: dict[str, int] = {}
    for position, op in enumerate(ops):
        for name in (*op.inputs, *(name for name, _ in op.outputs)):
            if name in buffer_of:
                last_use[buffer_of[name]] = position
    for name in kept:
        if name in buffer_of:
            last_use[buffer_of[name]] = len(ops)
    live: dict[str, tuple[str, int]] = {}
    total = peak = 0
    at, snapshot = "", dict(live)
    ending: dict[int, list[str]] = {}
    for name, position in last_use.items():
        ending.setdefault(position, []).append(name)
    for position, op in enumerate(ops):
        for k, (name, size) in enumerate(op.outputs):
            if buffer_of[name] != name:
                continue
            source = buffer_of.get(op.inputs[0]) if op.inputs else None
            if op.may_reuse and k == 0 and source in live and last_use[source] == position:
                held, bytes_ = live.pop(source)
                del held
                total -= bytes_
            live[name] = (op.name, size)
            total += size
        if total + op.scratch > peak:
            peak, at, snapshot = total + op.scratch, op.name, dict(live)
        for name in ending.get(position, ()):
            if name in live:
                total -= live.pop(name)[1]
    tensors = sorted(snapshot.values(), key=lambda item: -item[1])
    return Peak(peak, at, tuple(tensors[:20]))
