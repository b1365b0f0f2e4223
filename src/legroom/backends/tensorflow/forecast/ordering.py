"""In which order a step's ops leave least in memory. Pure.

TensorFlow runs what is ready, and what is ready first is seldom what frees most: gradients of
weights wait while activations and gradients pile up. Here the ops that move much memory are put
into a row, each time the one that leaves least. That is a rule of thumb: whether a row needs less
than the step as it is, in an allocator that leaves gaps, is for a prediction to say.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence

from legroom.core.graphs import Graph, Orderer, bytes_at

__all__ = ["Tensors", "least_left", "orderer", "waits"]

# Tensors below this share of the largest moment are let be: fewer ops have to wait for others.
_SMALL = 1 / 500
# What has no memory of its own to give, whatever its outputs' shapes are.
_NOTHING_NEW = {"none", "read", "update", "assign", "scatter"}


def orderer(samples: int) -> Orderer:
    """What says who waits for whom in a step on so many samples."""

    def order(graph: Graph) -> list[tuple[int, int]]:
        tensors = Tensors(graph, samples)
        heavy = tensors.heavy(_SMALL * tensors.peak(tensors.as_traced))
        numbers = least_left(tensors, heavy)
        bound = {number for number in heavy if not graph.nodes[number].fused}
        return waits(tensors, numbers, bound)

    return order


def waits(tensors: Tensors, numbers: Sequence[int], bound: Container[int]) -> list[tuple[int, int]]:
    """Which node has to wait for which, so that those that are bound run in this order.

    Without what they wait for anyway.

    Args:
        tensors: The graph.
        numbers: All its nodes, in order.
        bound: Those that are bound.
    """
    row = [number for number in numbers if number in bound]
    place = {number: k for k, number in enumerate(row)}
    # Of each node the last of the row that it waits for, and with that for all of the row before.
    last = [-1] * len(numbers)
    edges = []
    for number in numbers:
        known = max((last[source] for source in tensors.sources[number]), default=-1)
        at = place.get(number)
        if at is not None:
            if known < at - 1:
                edges.append((row[at - 1], number))
            known = at
        last[number] = known
    return edges


class Tensors:
    """A graph's pieces of memory: who makes each, and who has to have run before it is given back.

    Attributes:
        sources: The nodes that each node waits for.
        targets: The nodes that wait for each.
        as_traced: The nodes in the order of their making, as far as they can run in it.
        sizes: The bytes of each piece.
        made: The pieces that each node makes.
        read: The pieces that each node reads.
        readers: How many read each piece; one more for what is returned.
    """

    def __init__(self, graph: Graph, samples: int) -> None:
        nodes = graph.nodes
        self._nodes = nodes
        self.sources = [
            {source for source, _ in node.inputs} | set(node.controls) for node in nodes
        ]
        self.targets: list[list[int]] = [[] for _ in nodes]
        for number, sources in enumerate(self.sources):
            for source in sources:
                self.targets[source].append(number)
        self.as_traced = self._sorted()
        self.sizes: list[float] = []
        self.made: list[list[int]] = [[] for _ in nodes]
        self.read: list[list[int]] = [[] for _ in nodes]
        pieces: dict[tuple[int, int], int] = {}  # by the output that they are
        for number in self.as_traced:
            node = nodes[number]
            given = [pieces.get(edge) for edge in node.inputs]
            self.read[number] = list(dict.fromkeys(each for each in given if each is not None))
            if node.effect == "alias" and given:
                if given[0] is not None:
                    pieces[number, 0] = given[0]
                continue
            if node.effect in _NOTHING_NEW:
                continue
            for port, size in enumerate(node.outputs):
                if size is not None:
                    pieces[number, port] = len(self.sizes)
                    self.made[number].append(len(self.sizes))
                    self.sizes.append(bytes_at(size, samples))
        self.readers = [0] * len(self.sizes)
        for read in self.read:
            for piece in read:
                self.readers[piece] += 1
        for edge in graph.results:
            if edge in pieces:
                self.readers[pieces[edge]] += 1

    def _sorted(self) -> list[int]:
        pending = [len(sources) for sources in self.sources]
        ready = [number for number, count in enumerate(pending) if count == 0]
        found = []
        while ready:
            number = heapq.heappop(ready)
            found.append(number)
            for target in self.targets[number]:
                pending[target] -= 1
                if pending[target] == 0:
                    heapq.heappush(ready, target)
        return found

    def heavy(self, least: float) -> set[int]:
        """The nodes that make, or read, a piece of at least this size; but not mere aliases."""
        return {
            number
            for number, node in enumerate(self._nodes)
            if node.effect not in ("alias", "read")
            and any(
                self.sizes[piece] >= least for piece in (*self.made[number], *self.read[number])
            )
        }

    def peak(self, numbers: Sequence[int]) -> float:
        """The most bytes of tensors at a time, with the nodes one by one in this order."""
        left = list(self.readers)
        live = peak = 0.0
        for number in numbers:
            live += sum(self.sizes[piece] for piece in self.made[number])
            peak = max(peak, live)
            live -= sum(self.sizes[piece] for piece in self.made[number] if not left[piece])
            for piece in self.read[number]:
                left[piece] -= 1
                if left[piece] == 0:
                    live -= self.sizes[piece]
        return peak


def least_left(tensors: Tensors, heavy: set[int]) -> list[int]:
    """Each time the node that leaves least, of those that can run."""
    left = list(tensors.readers)
    sizes = tensors.sizes
    pending = [len(sources) for sources in tensors.sources]
    light: list[int] = []
    waiting: list[int] = []
    found: list[int] = []

    def grows(number: int) -> tuple[float, float, int]:
        made = sum(sizes[piece] for piece in tensors.made[number] if left[piece])
        freed = sum(sizes[piece] for piece in tensors.read[number] if left[piece] == 1)
        return made - freed, made, number

    def enter(number: int) -> None:
        if number in heavy:
            waiting.append(number)
        else:
            heapq.heappush(light, number)

    for number, count in enumerate(pending):
        if count == 0:
            enter(number)
    while light or waiting:
        if light:
            number = heapq.heappop(light)
        else:
            number = min(waiting, key=grows)
            waiting.remove(number)
        found.append(number)
        for piece in tensors.read[number]:
            left[piece] -= 1
        for target in tensors.targets[number]:
            pending[target] -= 1
            if pending[target] == 0:
                enter(target)
    return found
