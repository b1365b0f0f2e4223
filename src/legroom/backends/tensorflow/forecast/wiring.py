"""What is connected with what in a graph, read once for all its runs. Pure."""

from __future__ import annotations

import functools

from legroom.core.graphs import TIMED_AT, Graph, Size, bytes_at

__all__ = ["Wiring", "same_bytes"]

# What it takes to begin an op, in the time that a byte takes to be read or written.
_LEAST_TIME = 20_000.0


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
        places: Where each node is in the order that TensorFlow's optimizer leaves a graph in.
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
        roots = [number for number, count in enumerate(self.pending) if count == 0]
        self.early = [number for number in roots if number not in graph.late]
        self.late = [number for number in roots if number in graph.late]
        self.places = places = self._find_places(readers, after)
        self.targets: list[list[int]] = []
        for number, node in enumerate(nodes):
            first = self.firsts[number]
            told = [each for port in range(len(node.outputs)) for each in readers[first + port]]
            told.sort(key=places.__getitem__)
            self.targets.append(told + sorted(after[number], key=places.__getitem__))
        made = [_written(size) for node in nodes for size in node.outputs]
        self.times = [
            _LEAST_TIME + node.work + sum(made[first : first + len(node.outputs)])
            + sum(made[output] for output in read)
            for node, first, read in zip(nodes, self.firsts, self.inputs, strict=True)
        ]  # fmt: skip

    def _find_places(self, readers: list[list[int]], after: list[list[int]]) -> list[int]:
        """Find the places of all nodes.

        A node comes when the last that it waits for has come: first those that wait for nothing,
        then in turn those that each of them was the last for.
        """
        waits = list(self.pending)
        order = [*self.early, *self.late]
        ends = [*self.firsts[1:], self.count]
        done = 0
        while done < len(order):
            # The parts of a batch come from one node.
            batch = done == len(self.early) and len(self.late) > 1
            numbers = self.late if batch else order[done : done + 1]
            done += len(numbers)
            told = [each for number in numbers for each in after[number]]
            for number in numbers:
                for output in range(self.firsts[number], ends[number]):
                    told += readers[output]
            for each in sorted(told):
                waits[each] -= 1
                if waits[each] == 0:
                    order.append(each)
        places = [0] * len(waits)
        for place, number in enumerate(order):
            places[number] = place
        return places


def same_bytes(one: Size | None, other: Size | None) -> bool:
    """Whether two tensors take the same bytes at every batch size."""
    if one is None or other is None:
        return False
    return one == other or _bytes_at_primes(one) == _bytes_at_primes(other)


@functools.lru_cache(maxsize=4096)
def _bytes_at_primes(size: Size) -> tuple[float, ...]:
    return tuple(bytes_at(size, samples) for samples in (2, 3, 5))


def _written(size: Size | None) -> float:
    return 0.0 if size is None else bytes_at(size, TIMED_AT)
