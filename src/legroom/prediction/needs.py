"""What a step needs, whole and in slices, from its traces."""

from __future__ import annotations

from collections.abc import Sequence

from legroom.backends.tensorflow.forecast.graph_script import write_script
from legroom.backends.tensorflow.forecast.replay import smallest_pool
from legroom.core.graphs import StepWalk
from legroom.core.traces import StepTrace
from legroom.prediction.timeline import Peak, find_peak

__all__ = ["StepNeeds", "WalkedNeeds"]


class StepNeeds:
    """The bytes that a step should need beyond what is in use before it.

    Args:
        traces: The functions that run one after the other: what computes the gradients and, where
            that is another one, what applies them.
        samples: The size of the whole batch.
    """

    def __init__(self, traces: Sequence[StepTrace], samples: int) -> None:
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


def _kept_bytes(trace: StepTrace) -> int:
    kept = set(trace.kept)
    return sum(size for op in trace.ops(1) for name, size in op.outputs if name in kept)
