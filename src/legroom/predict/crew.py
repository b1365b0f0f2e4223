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
        late: Those that come all at once when nothing else is left to do.
        threads: How many threads there are.
    """

    def __init__(
        self, nodes: Sequence[Node], roots: Sequence[int], late: Sequence[int], threads: int
    ) -> None:
        self._nodes = nodes
        self._late = deque(late)
        self._next: list[deque[int]] = [deque() for _ in range(threads)]
        self._waiting: list[deque[int]] = [deque() for _ in range(threads)]
        self._waiting[0].extend(roots)
        self._idle = list(range(threads))
        self._running: list[tuple[float, int, int, int]] = []
        self._now = 0.0
        self._begun = 0

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
        if self._late and not self._running and not any(self._next):
            self._next[thread], self._late = self._late, deque()
            return self._next[thread].popleft()
        return None

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
