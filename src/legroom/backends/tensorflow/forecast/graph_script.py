"""A script from a step's graph alone: what the executor's model says that it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from legroom.backends.tensorflow.forecast.executor import Executor, Variable
from legroom.backends.tensorflow.forecast.script import Allocation, Entry, Script, counterparts
from legroom.core.graphs import Graph, Size

__all__ = ["write_script"]

# The numbers of a step's allocations come after those of what is held, and of the step before.
_STEP = 10**8
# In the first step variables move that share their memory; after it one step is like the other,
# but for what it gives back of the one before.
_STEPS = 3
# With several threads no two steps are alike, and the highest counts. In a large graph chance
# evens out: of ResNet50 they differ by 2 %.
_STEPS_OF_THREADS = 4
_LARGE, _STEPS_OF_LARGE = 4000, 2


def write_script(
    graph: Graph, held: Sequence[Any], inputs: Sequence[Size], threads: int = 1
) -> Script:
    """Make a script of a graph.

    Args:
        graph: The step.
        held: What is held between steps: each with a `role`, a `path`, `nbytes`, a `shape`, a
            `dtype`, the `name` of the argument that it is given as, and whether it is `born` in
            the first step.
        inputs: The sizes of the parts of a batch.
        threads: How many threads run the step.
    """
    writer = _Writer()
    build = [entry for item in held if not item.born for entry in writer.built(item)]
    given = [
        Allocation(-number, "input", "output", 0, axes, itemsize)
        for number, (axes, itemsize) in enumerate(inputs, 1)
    ]
    state = [entry for item in held if item.born for entry in writer.born(item)]
    before = [variable.buffer for variable in writer.variables.values()]
    executor = Executor(graph, writer.variables, threads)
    steps = [executor.run(_STEP)]
    different = _STEPS_OF_LARGE if len(graph.nodes) > _LARGE else _STEPS_OF_THREADS
    while threads > 1 and len(steps) < different:
        steps.append(executor.run((len(steps) + 1) * _STEP, chance=len(steps)))
    if any(v.buffer is not b for v, b in zip(writer.variables.values(), before, strict=True)):
        while len(steps) < _STEPS and not _repeats_itself(steps):
            steps.append(executor.run((len(steps) + 1) * _STEP))
    return Script(build, given, state, steps, recorded=1)


def _repeats_itself(steps: Sequence[Sequence[Entry]]) -> bool:
    """Whether all that the last step gave back of the one before, it also took itself."""
    if len(steps) < 2:
        return False
    own = {entry.number for entry in steps[-1] if isinstance(entry, Allocation)}
    taken_again = counterparts(steps[-2], steps[-1])
    freed = (entry for entry in steps[-1] if isinstance(entry, int) and entry not in own)
    return all(number in taken_again for number in freed)


class _Writer:
    """Writes what a training takes before its first step, as a probe has seen it."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self._numbers = itertools.count(1)
        self._zeros: dict[tuple[Any, ...], Variable] = {}

    def built(self, item: Any) -> Iterator[Entry]:
        """A variable of the model; one of several axes is drawn, scaled and shifted."""
        passing = []
        if item.role == "weights" and len(item.shape) > 1:
            passing = [next(self._numbers), next(self._numbers)]
        for number in passing:
            yield Allocation(number, item.path, "output", item.nbytes)
        number = next(self._numbers)
        yield Allocation(number, item.path, "output", item.nbytes)
        yield from reversed(passing)
        self._keep(item, number, None)

    def born(self, item: Any) -> Iterator[Entry]:
        """A variable that the first step brings along: all of one shape share their zeros."""
        key = (tuple(item.shape), item.dtype)
        like = self._zeros.get(key)
        number = 0
        if like is None:
            number = next(self._numbers)
            yield Allocation(number, item.path, "output", item.nbytes)
        self._zeros[key] = self._keep(item, number, like)

    def _keep(self, item: Any, number: int, like: Variable | None) -> Variable:
        variable = Variable(number, (((float(item.nbytes), 0.0),), 1.0), like)
        # What the step does not touch has no name, and is held all the same.
        self.variables[item.name or f"untouched {len(self.variables)}"] = variable
        return variable
