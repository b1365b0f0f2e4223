"""Which op of a graph runs next, on which of the executor's threads. Pure.

An op that is cheap runs at once, in the order it became ready; of those that are not, the last one
goes on and the others wait on the thread's stack. A thread that has nothing left to do takes what
has waited longest on another's.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from legroom.core.graphs import Node

__all__ = ["Crew"]


class Crew:
    """The threads, and what each of them has to do.

    Args:
        nodes: The graph's nodes.
        roots: Those that wait for nothing, by their numbers.
        threads: How many threads there are.
    """

    def __init__(self, nodes: Sequence[Node], roots: Sequence[int], threads: int) -> None:
        self._nodes = nodes
        self._next: list[deque[int]] = [deque() for _ in range(threads)]
        self._waiting: list[deque[int]] = [deque() for _ in range(threads)]
        self._waiting[0].extend(roots)
        self._idle = list(range(threads))
        self._running: list[tuple[float, int, int, int]] = []
        self._now = 0.0
        self._begun = self._turn = 0

    def begin(self) -> tuple[int, int] | None:
        """A thread and the op that it begins now; None where all are busy or nothing is ready."""
        for thread in self._idle:
            number = self._take(thread)
            if number is not None:
                return thread, number
        return None

    def _take(self, thread: int) -> int | None:
        if self._next[thread]:
            return self._next[thread].popleft()
        if self._waiting[thread]:
            return self._waiting[thread].popleft()
        for waiting in self._waiting:
            if waiting:
                return waiting.pop()
        return None

    def arrived(self, found: Sequence[int]) -> None:
        """What became ready by something that came from outside: it lines up behind all else."""
        for number in found:
            self._turn = (self._turn + 1) % len(self._waiting)
            self._waiting[self._turn].append(number)

    def run(self, thread: int, number: int, time: float) -> None:
        """Have a thread busy with an op for a while."""
        self._idle.remove(thread)
        self._begun += 1
        heapq.heappush(self._running, (self._now + time, self._begun, thread, number))

    def end(self) -> tuple[int, int] | None:
        """The op that ends next, and its thread; None where none is running."""
        if not self._running:
            return None
        self._now, _, thread, number = heapq.heappop(self._running)
        self._idle.append(thread)
        self._idle.sort()
        return thread, number

    def ready(self, thread: int, found: Sequence[int]) -> None:
        """Give a thread the ops that became ready by what it did."""
        mine = self._next[thread]
        last, others = None, []
        for number in found:
            if self._nodes[number].cheap:
                mine.append(number)
            else:
                if last is not None:
                    others.append(last)
                last = number
        if last is not None:
            if mine:
                others.append(last)
            else:
                mine.append(last)
        self._waiting[thread].extendleft(others)
