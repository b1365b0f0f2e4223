"""What is connected with what in a graph, read once for all its runs. Pure."""

from __future__ import annotations

import functools
import math

from legroom.core.graphs import Graph, Node, Size

__all__ = ["Wiring", "same_bytes"]

# Of times only the order counts, which is much the same at all batch sizes.
_TIMED_AT = 16
_LEAST_TIME = 2000.0


class Wiring:
    """A graph by numbers: each output of each node has one.

    Attributes:
        count: How many outputs there are.
        firsts: The number of each node's first output.
        inputs: The outputs that each node reads.
        results: The outputs that are returned.
        uses: How often each output is read or returned.
        pending: How many nodes and outputs each node waits for.
        targets: Who waits for each node, in the order in which they are told that it has run.
        early: The nodes that wait for nothing.
        late: Those of them that come when nothing else is left to do.
        times: About how long each node takes.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes
        self.firsts: list[int] = []
        count = 0
        for node in nodes:
            self.firsts.append(count)
            count += len(node.outputs)
        self.count = count
        self.pending = [len(node.inputs) + len(node.controls) for node in nodes]
        self.inputs = [[self.firsts[source] + port for source, port in n.inputs] for n in nodes]
        self.results = [self.firsts[source] + port for source, port in graph.results]
        self.uses = [0] * count
        readers: list[list[int]] = [[] for _ in range(count)]
        after: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for output in self.inputs[number]:
                self.uses[output] += 1
                readers[output].append(number)
            for source in node.controls:
                after[source].append(number)
        for output in self.results:
            self.uses[output] += 1
        self.targets: list[list[int]] = []
        for number, node in enumerate(nodes):
            first = self.firsts[number]
            told = [each for port in range(len(node.outputs)) for each in readers[first + port]]
            self.targets.append(told + after[number])
        roots = [number for number, count in enumerate(self.pending) if count == 0]
        self.early = [number for number in roots if number not in graph.late]
        self.late = [number for number in roots if number in graph.late]
        self.times = [_time(node) for node in nodes]


def same_bytes(one: Size | None, other: Size | None) -> bool:
    """Whether two tensors take the same bytes at every batch size."""
    if one is None or other is None:
        return False
    return one == other or _bytes_at_primes(one) == _bytes_at_primes(other)


@functools.lru_cache(maxsize=4096)
def _bytes_at_primes(size: Size) -> tuple[float, ...]:
    return tuple(_bytes(size, samples) for samples in (2, 3, 5))


def _bytes(size: Size, samples: int) -> float:
    axes, itemsize = size
    return itemsize * math.prod(fixed + each * samples for fixed, each in axes)


def _time(node: Node) -> float:
    """About how long an op takes, in the time that a byte takes to be written."""
    made = sum(_bytes(size, _TIMED_AT) for size in node.outputs if size is not None)
    return _LEAST_TIME + node.work * made
