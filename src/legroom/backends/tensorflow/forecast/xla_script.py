"""A script for a step that XLA compiles: one program, which takes all it needs in one piece. Pure.

XLA's own figure is exact, but it is not all that the step takes: weights and slots lie in the same
pool, and one large piece may not fit between them. In a pool that has room, on the other hand, the
allocator may hand out a chunk of up to twice the size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.backends.tensorflow.forecast.graph_script import write_script
from legroom.backends.tensorflow.forecast.script import Allocation, Script
from legroom.core.graphs import Graph, Node, Size

__all__ = ["write_compiled"]


def write_compiled(held: Sequence[Any], temporary: int, input_bytes: int) -> Script:
    """Make the script.

    Args:
        held: What is held between steps, as for `write_script`.
        temporary: The bytes that the program takes while it runs.
        input_bytes: What a batch takes.
    """
    named = [item for item in held if item.name]
    nodes = [Node(item.name, "none", [], [], [None], cheap=True) for item in named]
    program = len(nodes)
    nodes.append(Node("program", "new", [], [], [_bytes(temporary)]))
    # It writes variables in place, but those that still share their zeros with others it can't.
    nodes += [
        Node(item.path, "update", [(place, 0), (program, 0)], [], [])
        for place, item in enumerate(named)
        if item.born
    ]
    shared = _shared(held)
    script = write_script(
        Graph(nodes, list(range(program)), []),
        [*held, *(dataclasses.replace(item, name="") for item in shared)],
        [_bytes(input_bytes)],
    )
    first, *others = script.steps
    paths = {item.path for item in shared}
    zeros = [entry.number for entry in script.state
             if isinstance(entry, Allocation) and entry.op in paths]  # fmt: skip
    return dataclasses.replace(script, steps=[[*first, *zeros], *others])


def _shared(held: Sequence[Any]) -> list[Any]:
    """Of each kind of variables that begin as the same zeros and are all written, the first.

    With one more of each kind in the script, every one of them finds its memory shared in the first
    step and gets new one, as it does when all are written at once; then the zeros are given back.
    """
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for item in held:
        if item.born:
            kinds.setdefault((tuple(item.shape), item.dtype), []).append(item)
    return [items[0] for items in kinds.values() if all(item.name for item in items)]


def _bytes(count: int) -> Size:
    return ((float(count), 0.0),), 1.0
