"""A script from a step's graph alone: what the executor's model says that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.core.graphs import Graph, Size
from legroom.predict.executor import execute
from legroom.predict.script import Allocation, Script

__all__ = ["write_script"]

# The numbers of a step's allocations come after those of what is held.
_STEP = 10**8


def write_script(graph: Graph, held: Sequence[Any], inputs: Sequence[Size]) -> Script:
    """Make a script of a graph.

    Args:
        graph: The step.
        held: What is held between steps, with a `role`, a `path` and `nbytes`.
        inputs: The sizes of the parts of a batch.
    """
    kept = [
        (item.role, Allocation(number, item.path, "output", item.nbytes))
        for number, item in enumerate(held, 1)
    ]
    given = [
        Allocation(-number, "input", "output", 0, axes, itemsize)
        for number, (axes, itemsize) in enumerate(inputs, 1)
    ]
    step = [
        entry + _STEP
        if isinstance(entry, int)
        else dataclasses.replace(entry, number=entry.number + _STEP)
        for entry in execute(graph)
    ]
    return Script(
        build=[entry for role, entry in kept if role == "weights"],
        input=given,
        state=[entry for role, entry in kept if role != "weights"],
        steps=[step],
        recorded=1,
    )
