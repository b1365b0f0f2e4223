"""What a step needs, whole and in slices, before it has run; and how sure that is.

Two sources: the ops of its trace, which take a moment to look through, and a walk over its graph,
which takes about a second. Running out takes ten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from legroom.backends.tensorflow.forecast.graph_script import write_script
from legroom.backends.tensorflow.forecast.replay import smallest_pool
from legroom.backends.tensorflow.forecast.timeline import Peak, find_peak
from legroom.core.graphs import StepWalk
from legroom.core.traces import StepTrace

__all__ = ["TracedNeeds", "WalkedNeeds", "settled_needs", "usable_share"]

# Not all that a step takes of the host's memory is in the allocator's books, nor given back.
_USABLE_OF_THE_HOST = 0.7
# Past a plan the last tenth of a pool is left: one and the same step took up to 12 % more another
# time (ops side by side in another order, what is free in other pieces), and what is planned is
# near the best already.
_USABLE_PAST_PLAN = 0.9
# What XLA compiles is another program than the one that is predicted, with its memory in one piece.
_USABLE_IN_ONE_PIECE = 0.5


def usable_share(*, compiled: bool, limited: bool, planned: bool) -> float:
    """The share of what is free that a size above those that were seen may need.

    Args:
        compiled: Whether XLA makes one program of the step.
        limited: Whether the device's memory has a limit of its own.
        planned: Whether a plan said where to begin.
    """
    if compiled:
        return _USABLE_IN_ONE_PIECE
    if not limited:
        return _USABLE_OF_THE_HOST
    return _USABLE_PAST_PLAN if planned else 1.0


class TracedNeeds:
    """The bytes that a step should need beyond what is in use before it, by its ops alone.

    Args:
        traces: The functions that run one after the other: what computes the gradients and, where
            that is another one, what applies them.
        samples: The size of the whole batch.
        compiled: Whether XLA makes another program of them.
    """

    source = "ops"
    low, high = 1.0, 1.9  # how far it may be off, as `legroom.backends.steps.Needs` says

    def __init__(
        self, traces: Sequence[StepTrace], samples: int, *, compiled: bool = False
    ) -> None:
        self.alike = not compiled
        self._traces = list(traces)
        self._samples = samples
        self._peaks: dict[tuple[int, int], Peak] = {}
        # Gradients wait for the function that applies them.
        self._gradients = _kept_bytes(traces[0]) if len(traces) > 1 else 0

    def __call__(self, samples: int) -> int:
        """The bytes needed with slices of this size; of the batch's size, whole."""
        # Slices add their gradients up, in another copy of them.
        sums = self._gradients if samples < self._samples else 0
        first = self._peak(0, samples).live_bytes + sums
        rest = [
            self._gradients + sums + self._peak(i, samples).live_bytes
            for i in range(1, len(self._traces))
        ]
        return max([first, *rest])

    def surely_fits(self, free: int) -> bool:
        """Whether the whole batch does; nobody is sure of loops, whose inside is not seen."""
        fits = self(self._samples) * self.high <= free
        return fits and not any(trace.loops for trace in self._traces)

    def peak(self, samples: int) -> Peak:
        """The largest moment of the gradients' function on this many samples."""
        return self._peak(0, samples)

    def _peak(self, number: int, samples: int) -> Peak:
        key = (number, samples)
        if key not in self._peaks:
            trace = self._traces[number]
            self._peaks[key] = find_peak(trace.ops(samples), trace.kept)
        return self._peaks[key]


class WalkedNeeds:
    """The same from a walk over the step's graph: slower to make, and nearer.

    It knows the order in which the executor runs the ops, the inside of loops, and how much of a
    pool the allocator leaves lying idle in pieces.

    Args:
        walk: The step on slices.
        samples: The size of the whole batch.
    """

    source = "graph"
    low, high = 1.1, 1.25
    alike = True

    def __init__(self, walk: StepWalk, samples: int) -> None:
        self._script = write_script(walk.graph, walk.held, walk.inputs, walk.threads)
        self._held = sum(item.nbytes for item in walk.held if item.role != "gradients")
        self._samples = samples
        self._needs: dict[int, int] = {}

    def __call__(self, samples: int) -> int:
        """The bytes needed with slices of this size; of the batch's size, whole.

        Sizes past the batch's tell how the need of slices grows.
        """
        if samples >= self._samples:
            return self._need(samples)
        # Pieces fit into each other at one size and not at the next, so the model of the allocator
        # goes up and down; but no size needs more than one that is larger.
        larger = min(samples + samples // 8, self._samples)
        return min(self._need(samples), self._need(larger))

    def _need(self, samples: int) -> int:
        if samples not in self._needs:
            batch = sum(
                entry.bytes_at(samples, self._script.recorded)
                for entry in self._script.input
                if not isinstance(entry, int)
            )
            # The sums of the gradients are part of it. A step on the whole batch has none, but
            # keeps all of its gradients until it can't fail any more, which takes as much.
            need = smallest_pool(self._script, samples) - self._held
            if samples == self._samples:
                need -= batch  # a slice is cut out of the batch
            self._needs[samples] = max(0, need)
        return self._needs[samples]


def settled_needs(
    quick: TracedNeeds, samples: int, free: int, walk: Callable[[], StepWalk | None]
) -> TracedNeeds | WalkedNeeds:
    """What settles whether a batch fits: its ops where they do, else a walk where there is one.

    A walk is worth its second, because running out would cost ten.

    Args:
        quick: What the ops tell.
        samples: The size of the whole batch.
        free: The bytes that are free.
        walk: Walks over the step's graph; None where it can't be.
    """
    walked = None if quick.surely_fits(free) else walk()
    return quick if walked is None else WalkedNeeds(walked, samples)


def _kept_bytes(trace: StepTrace) -> int:
    kept = set(trace.kept)
    return sum(size for op in trace.ops(1) for name, size in op.outputs if name in kept)
